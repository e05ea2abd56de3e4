"""Which runs are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchmarks.league.conditions import CONDITIONS
from benchmarks.league.entrants import ENTRANTS
from benchmarks.league.pool import Task
from benchmarks.league.tasks import TASKS


def plan(seeds: Sequence[int], patterns: Sequence[str] = (), policies: Sequence[str] = ()) -> list[Task]:
    """Return the runs in the order of the tables; what is not installed stays away.

    Args:
        seeds: of each cell.
        patterns: TASK/CONDITION/ENTRANT with wildcards, or one of the three alone; none for all.
        policies: further policy files, each an entrant of its own.

    Raises:
        ValueError: a pattern names nothing.

    Example:
        >>> plan([0], ["cnn/clean/none"])
        [('cnn', 'clean', 'none', 0)]
        >>> len(plan([0, 1], ["gpt/*/clip"]))
        16
    """
    names = [*(name for name, entrant in ENTRANTS.items() if entrant.is_here), *policies]
    cells = [(task, condition, name) for task in TASKS for condition in CONDITIONS for name in names]
    for pattern in patterns:
        if not any(_fits(cell, pattern) for cell in cells):
            known = ", ".join((*TASKS, *CONDITIONS, *names))
            raise ValueError(f"{pattern!r} names no run; use TASK/CONDITION/ENTRANT with wildcards, or one of {known}")
    chosen = [cell for cell in cells if not patterns or any(_fits(cell, pattern) for pattern in patterns)]
    # Seed by seed: a league that is broken off has whole seeds.
    return [(*cell, seed) for seed in seeds for cell in chosen]


def _fits(cell: tuple[str, str, str], pattern: str) -> bool:
    return pattern in cell or fnmatchcase("/".join(cell), pattern)
