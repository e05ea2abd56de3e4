"""Does the loss fall along minus the gradient?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding


MAX_RATIO = -0.5  # of the promised fall: 1 is right, -1 a turned sign


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a gradient that leads uphill however small the step."""
    trial = facts.trial
    if trial is None:
        return
    ratios = trial.slope_ratios
    if ratios and all(ratio < MAX_RATIO for ratio in ratios.values()):
        yield PreflightFinding(
            severity="critical",
            message="The loss rises along minus its own gradient, however small the step: its sign is wrong.",
            cure="look for a minus sign, a gradient reversal or a backward function of your own",
            evidence={"ratio": next(iter(ratios.values()))},
        )
    elif trial.promised > 0 and trial.losses[-1] > trial.losses[0] and facts.loss.kind != "other":
        uses = " It maximizes." if any(group.is_maximized for group in facts.groups) else ""
        yield PreflightFinding(
            severity="critical",
            message=f"The optimizer steps uphill: loss {trial.losses[0]:.4g} becomes {trial.losses[-1]:.4g}.{uses}",
            cure="minimise: maximize=False, a positive learning rate",
        )
