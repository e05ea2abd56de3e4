"""Names of the policy language as people say them; where a name must be found again it stands in brackets."""

from __future__ import annotations

from collections.abc import Mapping

from gradguard.printable import printable


SPOKEN = {"nonfinite": "NaN or infinity"}


def spoken(name: str) -> str:
    """Return a diagnosis as it is said in a sentence.

    Example:
        >>> spoken("loss_spike"), spoken("nonfinite")
        ('loss spike', 'NaN or infinity')
    """
    return printable(SPOKEN.get(name, name.replace("_", " ")))


def times(count: int) -> str:
    """Return how often.

    Example:
        >>> times(1), times(2), times(1200)
        ('once', 'twice', '1,200 times')
    """
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def counted(counts: Mapping[str, int], most: int = 3) -> str:
    """Return what was found how often, the most frequent first.

    Example:
        >>> counted({"loss_spike": 1, "nonfinite": 12})
        'NaN or infinity 12 times, loss spike once'
    """
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    named = ", ".join(f"{spoken(name)} {times(count)}" for name, count in ranked[:most])
    return named + (f", {len(ranked) - most} more" if len(ranked) > most else "")
