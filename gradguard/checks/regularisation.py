"""Is regularisation so strong that little can be learnt?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most, few


MAX_DROPOUT = 0.8  # the strongest in use, for the inputs of a denoising model, is about as much
MAX_SHRINKAGE = 0.01  # of a weight, a step; usual are 1e-6 to 1e-4


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield dropout that lets hardly anything through, and weight decay that outruns the gradient."""
    strong = [name for name, share in facts.dropout.items() if share > MAX_DROPOUT]
    if strong:
        yield PreflightFinding(
            severity="warn",
            message=f"{few(strong)} drop {max(facts.dropout.values()):.0%} of their inputs.",
            cure="0.1 to 0.5 is usual; the argument is the share that is dropped, not the share that is kept",
            layers=at_most(strong),
        )
    shrinkage = max((max(group.lr, group.initial_lr) * group.weight_decay for group in facts.groups), default=0.0)
    if shrinkage > MAX_SHRINKAGE:
        yield PreflightFinding(
            severity="warn",
            message=f"Weight decay times learning rate is {shrinkage:.2g}: every step takes so much off each weight.",
            cure="lower the weight decay; 1e-4 (SGD) and 0.01 to 0.1 (AdamW) are usual",
            evidence={"shrinkage": shrinkage},
        )
