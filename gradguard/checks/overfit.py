"""Can one batch be learnt by heart?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from gradguard.checklist.facts import NEVER_NEGATIVE, Facts
from gradguard.checklist.finding import PreflightFinding


MIN_FALL = 0.5  # of the first loss, for losses that end at zero
TAIL = 5  # last losses whose median is the end


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a batch that was not learnt; only where the user asked for it."""
    curve = facts.overfit
    if not curve:
        return
    if not all(map(math.isfinite, curve)):
        yield _found(f"Training on this one batch ends in a loss of {curve[-1]} after {len(curve) - 1} steps.", curve)
        return
    first, last = curve[0], median(curve[-TAIL:])
    wanted = MIN_FALL * first if facts.loss.kind in NEVER_NEGATIVE else 0.0
    if not first - last > wanted:
        yield _found(
            f"After {len(curve) - 1} steps on this one batch the loss went from {first:.4g} to {last:.4g} only.", curve
        )


def _found(message: str, curve: tuple[float, ...]) -> PreflightFinding:
    return PreflightFinding(
        severity="critical",
        message=f"{message} A model that cannot learn one batch by heart cannot learn the task.",
        cure="look at the other findings first; then at labels, learning rate, loss function and strong regularisation",
        evidence={"first": curve[0], "last": curve[-1], "steps": len(curve) - 1},
    )
