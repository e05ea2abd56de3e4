"""The decay of the weights outruns whatever the gradient could teach them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.records import Finding
from gradguard.stats import ParameterTable, StepStats


GROWTH = 2.0  # over what was told before, from which it is told again


@dataclass
class DecayState:
    """The largest share that was told."""

    told: float = 0.0


@DIAGNOSES.register
class ExcessWeightDecay(Diagnosis[DecayState]):
    """Every step takes so much off each weight that nothing learnt can last.

    Args:
        max_shrinkage: share of a weight that decay takes off per step, above which it is reported, in (0, 1).
    """

    name = "excess_weight_decay"
    what = "Weight decay takes so much off the weights at every step that what they learn is gone within a few dozen."
    computed = (
        "Sampled: the largest lr x weight_decay of the param groups, over 1 - momentum with SGD; alarm above "
        "`max_shrinkage`, and again when it has doubled. Not judged where decay is part of a gradient that is "
        "normalised, as in Adam."
    )
    cure = "Lower the weight decay: 1e-4 (SGD) and 0.01 to 0.1 (AdamW) are usual."
    source = "Loshchilov and Hutter 2019 (decoupled decay); usual shares are 1e-6 to 1e-4, for grokking 1e-3"
    precedence = 11

    max_shrinkage: float = Field(default=0.01, gt=0, lt=1)

    def rests_when_quiet(self) -> bool:
        return True

    def init(self, table: ParameterTable, rows: Sequence[int]) -> DecayState:
        return DecayState()

    def update(self, state: DecayState, stats: StepStats) -> tuple[DecayState, Finding | None]:
        share = stats.shrinkage
        if not self.max_shrinkage < share < math.inf or not share > GROWTH * state.told:
            return state, None
        state.told = share
        half = math.log(2.0) / -math.log1p(-min(share, 0.999))
        return state, Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="share of the weights that decay takes off per step",
            value=share,
            baseline=1e-4,
            threshold=self.max_shrinkage,
            message=f"Weight decay takes {share:.2g} of the weights per step: half is gone after {half:.0f} steps.",
            advice=self.cure,
        )
