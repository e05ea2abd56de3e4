"""Does the optimizer train what should be trained?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts, Parameter
from gradguard.checklist.finding import PreflightFinding, at_most, few


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield parameters that nobody trains, that are trained twice, or that are not the model's."""
    own = [p for p in facts.parameters if not p.is_foreign]
    if not any(p.is_trained for p in own):
        yield PreflightFinding(
            severity="critical",
            message="Every parameter of the model is frozen (requires_grad=False).",
            cure="thaw what should be trained: parameter.requires_grad_()",
        )
        return
    if not any(p.memberships for p in own):
        yield PreflightFinding(
            severity="critical",
            message="None of the optimizer's parameters belongs to this model: its steps will change nothing.",
            cure="build the optimizer from model.parameters() of this very model, after moving or wrapping it",
        )
        return
    yield from _missing([p for p in own if p.is_trained and not p.memberships])
    if twice := [p for p in facts.parameters if p.memberships > 1]:
        yield PreflightFinding(
            severity="warn",
            message=f"{few([p.name for p in twice])} is in the optimizer more than once and is updated as often.",
            cure="list every parameter in one param group only",
            layers=at_most([p.name for p in twice]),
        )
    idle = [p for p in facts.parameters if p.is_foreign and p.is_trained and not p.grad_norm]
    if idle and facts.loss.has_graph and facts.failure is None:
        yield PreflightFinding(
            severity="warn",
            message=f"{len(idle)} parameters of the optimizer are not the model's and get no gradient.",
            cure="was the model, or a part of it, replaced after the optimizer was built? Build it last",
            layers=at_most([p.name for p in idle]),
        )
    if frozen := [p for p in own if p.memberships and not p.is_trained]:
        yield PreflightFinding(
            severity="info",
            message=f"{len(frozen)} of the optimizer's parameters are frozen: {few([p.name for p in frozen])}.",
            layers=at_most([p.name for p in frozen]),
        )


def _missing(missing: list[Parameter]) -> Iterator[PreflightFinding]:
    if missing:
        is_needed = any(p.grad_norm for p in missing)
        yield PreflightFinding(
            severity="critical" if is_needed else "warn",
            message=(
                f"{len(missing)} parameters want gradients but are in no param group of the optimizer, so they will "
                f"never change: {few([p.name for p in missing])}."
            ),
            cure="pass model.parameters() to the optimizer, or freeze them with requires_grad_(False)",
            layers=at_most([p.name for p in missing]),
        )
