"""Can the units of a layer become different from each other?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most, few


MAX_TWINS = 0.5  # of the units


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield layers whose units have equal weights and equal gradients, and so stay equal for ever.

    Constant weights whose gradients differ are fine: a zero-initialised head, or the second matrix of LoRA.
    """
    stuck = [p for p in facts.parameters if p.is_weight and p.is_trained and p.twins > MAX_TWINS]
    if not stuck:
        return
    constant = [p for p in stuck if p.std == 0]
    value = f" All their weights are {constant[0].mean:g}." if len(constant) == len(stuck) else ""
    share = max(p.twins for p in stuck)
    yield PreflightFinding(
        severity="critical",
        message=(
            f"In {few([p.layer for p in stuck])}, {share:.0%} of the units have the same weights and the same "
            f"gradients as another one: they will stay equal for ever, as if they were one unit.{value}"
        ),
        cure="initialise the weights at random: He (nn.init.kaiming_normal_) for ReLU, Xavier for tanh and sigmoid",
        layers=at_most([p.name for p in stuck]),
        evidence={"twins": share},
    )
