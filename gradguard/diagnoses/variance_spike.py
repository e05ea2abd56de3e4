"""One batch blew up a running variance: training goes on as if nothing was, evaluation is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import short
from gradguard.records import Finding


FIRST_STEPS = 20  # in which running variances still find their level


@dataclass
class VarianceState:
    """Nothing is remembered."""


@DIAGNOSES.register
class VarianceSpike(Diagnosis[VarianceState]):
    """A running variance of a batch normalisation grew many times over in one step.

    Args:
        growth: norm of a layer's running variance over what it was after the last accepted step, above which it is
            reported, > 3.
    """

    name = "variance_spike"
    what = (
        "A batch with absurd values went into the running statistics of a batch normalisation. In training it divides "
        "by the batch's own statistics, so neither loss nor gradient shows it; in evaluation the model is broken."
    )
    computed = (
        "Every step: the L2 norm over the channels of each layer's running variance, after over before the step's "
        "batches; alarm above `growth` after the first 20 steps. Only in a single process on the CPU that judges every "
        "step before it is taken."
    )
    cure = (
        "Look at the samples of this batch for values of another scale; clip or standardise inputs; layer or group "
        "normalisation, which have no memory."
    )
    source = "Ioffe and Szegedy 2015 (running statistics); healthy ones grow by 1.09 at most, poisoned by 985 or more"
    reads = frozenset({"variances"})
    precedence = 8
    is_foreseeable = True  # where steps are left to the device it is not looked at

    growth: float = Field(default=10.0, gt=3)

    def rests_when_quiet(self) -> bool:
        return True

    def init(self, table: ParameterTable, rows: Sequence[int]) -> VarianceState:
        return VarianceState()

    def update(self, state: VarianceState, stats: StepStats) -> tuple[VarianceState, Finding | None]:
        if not stats.variance_growth > self.growth or stats.step < FIRST_STEPS:
            return state, None
        return state, Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="critical",
            statistic="growth of a running variance",
            value=stats.variance_growth,
            baseline=1.0,
            threshold=self.growth,
            parameters=(stats.grown_variance,),
            num_parameters=1,
            message=(
                f"This batch made {stats.grown_variance} {short(stats.variance_growth)} times as large: evaluation "
                "would be wrong for as long as that takes to fade."
            ),
            advice=self.cure,
        )
