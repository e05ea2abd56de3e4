"""Are tanh or sigmoid units saturated before the first step?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most, few


MAX_SHARE = 0.5  # of the entries; healthy ones stay below 0.02


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield layers with most entries in the flat part; a gate or an output that is meant to be shut is no layer."""
    places = [p for p in facts.places if p.kind in ("tanh", "sigmoid") and p.saturated > MAX_SHARE]
    if places:
        worst = max(places, key=lambda place: place.saturated)
        yield PreflightFinding(
            severity="warn",
            message=(
                f"{worst.saturated:.0%} of the values of {few([p.name for p in places])} are in the flat part of the "
                f"{worst.kind}, where the gradient is almost 0."
            ),
            cure="make the weights before it smaller (Xavier: nn.init.xavier_uniform_), and standardise the inputs",
            layers=at_most([place.name for place in places]),
            evidence={"saturated": worst.saturated},
        )
