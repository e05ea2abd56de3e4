"""Is the learning rate of a sane size?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from gradguard.checklist.facts import NEVER_NEGATIVE, Facts
from gradguard.checklist.finding import PreflightFinding


MIN_UPDATE = 1e-6  # largest norm(change) / norm(weight) of the first step; healthy runs have 3e-5 and more
MAX_RISE = 2.0  # times the first loss, on the same batch within the trial steps; healthy runs stay below 1.2
MAX_OVERSHOOT = 1.0  # of the fall that the slope promised: 0 is where a quadratic stops falling, healthy runs pass it


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a learning rate of zero, and a first step that is far too short or far too long."""
    lrs = [group.lr for group in facts.groups]
    if all(lr == 0 for lr in lrs):
        is_warmup = any(group.initial_lr > 0 for group in facts.groups)
        if not is_warmup:
            yield PreflightFinding(
                severity="critical", message="The learning rate is 0: nothing will move.", cure="set one, such as 1e-3"
            )
            return
    if facts.trial is None or len(facts.trial.losses) < 2 or not math.isfinite(facts.trial.losses[0]):
        return
    moved = [p for p in facts.parameters if p.is_weight and p.memberships and p.is_trained and p.grad_norm]
    ratios = [p.update_ratio for p in moved if p.update_ratio is not None]
    usual = median(ratios) if ratios else None
    is_slow = len(ratios) == len(moved) > 0 and 0 < max(ratios) < MIN_UPDATE  # a weight of zero has no ratio
    before, after = facts.trial.losses[:2]
    rise = after - before
    highest = max((loss for loss in facts.trial.losses if math.isfinite(loss)), default=math.inf)
    told = f"; the weights change by {usual:.2g} of their size" if usual is not None else ""
    if not all(map(math.isfinite, facts.trial.losses)):
        yield _long(f"After {len(facts.trial.losses) - 1} steps the loss is {facts.trial.losses[-1]}{told}.", rise)
    elif rise > MAX_OVERSHOOT * abs(facts.trial.promised) and rise > abs(before):
        yield _long(f"One step takes the loss on the same batch from {before:.4g} up to {after:.4g}{told}.", rise)
    elif facts.loss.kind in NEVER_NEGATIVE and highest > MAX_RISE * before:
        yield _long(f"A few steps take the loss on the same batch from {before:.4g} up to {highest:.4g}{told}.", rise)
    elif is_slow:
        yield PreflightFinding(
            severity="warn",
            message=f"The first step changes the weights by {max(ratios):.1g} of their size at most; 0.001 is usual.",
            cure="raise the learning rate by 10 to 1000 times, unless the gradient itself fades on its way",
            evidence={"update_ratio": max(ratios)},
        )


def _long(message: str, rise: float) -> PreflightFinding:
    return PreflightFinding(
        severity="warn",
        message=f"The learning rate is too high. {message}",
        cure="divide it by 10 until the loss falls; look at the scale of inputs and targets, and at reduction='sum'",
        evidence={"rise": rise},
    )
