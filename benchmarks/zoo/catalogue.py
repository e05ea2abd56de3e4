"""Every set-up of the zoo by its id."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchmarks.zoo.failing_signal import FAILING_SIGNAL
from benchmarks.zoo.failing_steps import FAILING_STEPS
from benchmarks.zoo.failing_task import FAILING_TASK
from benchmarks.zoo.healthy import HEALTHY
from benchmarks.zoo.healthy_changes import HEALTHY_CHANGES
from benchmarks.zoo.healthy_games import HEALTHY_GAMES
from benchmarks.zoo.healthy_language import HEALTHY_LANGUAGE
from benchmarks.zoo.healthy_losses import HEALTHY_LOSSES
from benchmarks.zoo.heldout_failing import HELDOUT_FAILING
from benchmarks.zoo.heldout_healthy import HELDOUT_HEALTHY
from benchmarks.zoo.setup import Setup
from benchmarks.zoo.transient import TRANSIENT


ZOO: dict[str, Setup] = {
    setup.id: setup
    for family in (
        HEALTHY,
        HEALTHY_CHANGES,
        HEALTHY_LOSSES,
        HEALTHY_LANGUAGE,
        HEALTHY_GAMES,
        TRANSIENT,
        sorted((*FAILING_SIGNAL, *FAILING_STEPS, *FAILING_TASK), key=lambda setup: setup.id),
        HELDOUT_HEALTHY,
        HELDOUT_FAILING,
    )
    for setup in family
}


def choose(patterns: Sequence[str]) -> list[Setup]:
    """Return the set-ups whose id or group matches a pattern such as "H*", in the zoo's order.

    The group "heldout" is that of the last test: it is left out unless it is asked for by this name or by ids.

    Raises:
        ValueError: a pattern matches nothing.
    """
    chosen = []
    for pattern in patterns:
        matching = [id for id, setup in ZOO.items() if fnmatchcase(id, pattern) or _group(setup) == pattern]
        if not matching:
            raise ValueError(f"no set-up matches {pattern!r}; known: {', '.join(ZOO)}")
        chosen += matching
    return [setup for id, setup in ZOO.items() if (id in chosen if patterns else not setup.held_out)]


def _group(setup: Setup) -> str:
    return "heldout" if setup.held_out else setup.group
