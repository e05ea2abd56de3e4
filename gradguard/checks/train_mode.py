"""Is the model in training mode?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most, few


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield dropout and batch normalisation that rest although the model is about to be trained."""
    if not facts.is_training:
        does = f": {few(facts.resting)} rest" if facts.resting else ""
        yield PreflightFinding(
            severity="warn" if facts.resting else "info",
            message=f"The model is in evaluation mode{does}.",
            cure="call model.train() before training, and again after each evaluation",
            layers=at_most(facts.resting),
        )
    elif facts.resting:
        yield PreflightFinding(
            severity="info",
            message=f"{few(facts.resting)} are in evaluation mode while the model trains.",
            cure="fine for a frozen part; otherwise call model.train()",
            layers=at_most(facts.resting),
        )
