"""How often each arm reached what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.zoo.interval import wilson
from benchmarks.zoo.repair.attempt import Attempt
from benchmarks.zoo.result import RECOVERED


NO_FAULT = ""


@dataclass(frozen=True)
class Rate:
    """So many of so many.

    Args:
        hits: runs that reached it.
        total: runs that could.
    """

    hits: int
    total: int

    @property
    def percent(self) -> float:
        """Hits of the total, in %."""
        return 100.0 * self.hits / max(1, self.total)

    @property
    def interval(self) -> tuple[float, float]:
        """The Wilson interval of it, 95 %, in %."""
        low, high = wilson(self.hits, self.total)
        return 100.0 * low, 100.0 * high

    def __str__(self) -> str:
        return f"{self.hits}/{self.total}" if self.total else "-"


def rate(attempts: Iterable[Attempt], reached: Callable[[Attempt], bool]) -> Rate:
    """Return how many of the attempts reached something.

    Example:
        >>> rate([], lambda attempt: True).interval
        (0.0, 100.0)
    """
    judged = [reached(attempt) for attempt in attempts]
    return Rate(sum(judged), len(judged))


# What is asked of a run, by where its cure lies: a plot and a table have a place for each.
CLASSES: dict[str, Callable[[Attempt], bool]] = {
    "loop": lambda attempt: attempt.is_repaired,
    "surgery": lambda attempt: attempt.is_repaired,
    "advice": lambda attempt: attempt.abstained,
}


def class_rate(attempts: Sequence[Attempt], kind: str) -> Rate:
    """Return how many failing runs of a class were repaired or, where only advice helps, were not tampered with."""
    return rate((attempt for attempt in attempts if attempt.repair == kind), CLASSES[kind])


def is_harmed(attempt: Attempt) -> bool:
    """Return whether a healthy run lost more than 2 % of its score."""
    return attempt.harm > RECOVERED * abs(attempt.unguarded)


def fault_of(attempt: Attempt) -> str:
    """Return the fault that struck a healthy run, "" when none did.

    Example:
        >>> from benchmarks.zoo.repair.attempt import Attempt
        >>> fault_of(Attempt("T-nan-batch@H01", "transient", None, 0, "clip", 9, 1.0, 1.0, 1.0, True, {}, 0, ""))
        'nan-batch'
    """
    return attempt.id.removeprefix("T-").partition("@")[0] if attempt.group == "transient" else NO_FAULT


def arms_of(attempts: Iterable[Attempt]) -> list[str]:
    """Return the arms, in their order."""
    return list(dict.fromkeys(attempt.arm for attempt in attempts))
