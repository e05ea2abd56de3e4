"""One thing that a pre-flight found wrong. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from gradguard.printable import layer_name
from gradguard.records import MAX_NAMES, Frozen, Number, Severity


MAX_SHOWN = 3  # names in a sentence


class PreflightFinding(Frozen):
    """What is wrong, in a newcomer's words, and what to do about it.

    Args:
        check: name of the check; filled in by the pre-flight.
        severity: "info" (worth knowing), "warn" (training will suffer), "critical" (it will not learn).
        message: what is wrong, with the numbers.
        cure: what to do.
        layers: names of the layers or parameters concerned, at most 16.
        evidence: the numbers, by name.
    """

    check: str = ""
    severity: Severity
    message: str
    cure: str = ""
    layers: tuple[str, ...] = ()
    evidence: dict[str, Number | str] = Field(default_factory=dict)


def few(names: Sequence[str]) -> str:
    """Return names for a sentence; many are cut short, with their count.

    Example:
        >>> few(["a", "1"]), few(["a", "b", "c", "d", "e"])
        ("a, layer '1'", 'a, b, c and 2 more')
    """
    shown = ", ".join(map(layer_name, names[:MAX_SHOWN]))
    return shown if len(names) <= MAX_SHOWN else f"{shown} and {len(names) - MAX_SHOWN} more"


def at_most(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a finding keeps."""
    return tuple(names[:MAX_NAMES])
