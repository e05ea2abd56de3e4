"""Of several remedies that were applied together: which one people are told of first."""

from __future__ import annotations

from collections.abc import Iterable

from gradguard.contracts import REMEDIES, Remedy


KINDS = ("verdict", "surgery", "optimizer", "gradient", "notice")  # what changes more of the run goes first
UNKNOWN = KINDS.index("gradient")  # a remedy that does not come with the package
WORDS = {"rollback": "a rollback", "restart": "a restart", "rebaseline": "a new baseline"}


def _place(remedy: type[Remedy]) -> int:
    """Return its place among its kind: verdicts by how much they undo, the others as they are applied."""
    return -remedy.rank if remedy.kind == "verdict" else remedy.rank


def main_first(names: Iterable[str]) -> list[str]:
    """Return the names of remedies, each once: what decides over the step, then what changes the run, notices last.

    Example:
        >>> main_first(["notify", "scale_lr", "keep_clipping", "rollback", "scale_lr"])
        ['rollback', 'scale_lr', 'keep_clipping', 'notify']
    """
    known = {remedy.name: remedy for remedy in REMEDIES}

    def weight(name: str) -> tuple[int, int]:
        remedy = known.get(name)
        return (UNKNOWN, 0) if remedy is None else (KINDS.index(remedy.kind), _place(remedy))

    return sorted(dict.fromkeys(names), key=weight)
