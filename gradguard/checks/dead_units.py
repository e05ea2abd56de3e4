"""Are ReLU units dead before the first step?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most, few


BLOCKED, MANY = 0.95, 0.5  # share of a layer's units
MIN_SAMPLES, ENOUGH_SAMPLES = 8, 32  # a healthy unit is 0 on eight samples now and then, on 32 hardly ever


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield layers of which most units are 0 on every sample."""
    relus = [place for place in facts.places if place.kind == "relu"]
    blocked = [p for p in relus if p.dead > BLOCKED and p.num_samples >= MIN_SAMPLES]
    many = [p for p in relus if MANY < p.dead <= BLOCKED and p.num_samples >= ENOUGH_SAMPLES]
    cure = "look at the biases (zero is right), the initialisation (He) and the scale of the inputs; or use LeakyReLU"
    for places, severity, what in ((blocked, "critical", "no signal gets through"), (many, "warn", "little is left")):
        if places:
            worst = max(places, key=lambda place: place.dead)
            yield PreflightFinding(
                severity="critical" if severity == "critical" else "warn",
                message=(
                    f"{worst.dead:.0%} of the units of {few([p.name for p in places])} are 0 on all "
                    f"{worst.num_samples} samples: {what}, and dead units get no gradient."
                ),
                cure=cure,
                layers=at_most([place.name for place in places]),
                evidence={"dead": worst.dead},
            )
