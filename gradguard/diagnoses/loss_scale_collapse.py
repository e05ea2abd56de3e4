"""GradScaler keeps skipping steps, or its scale has nothing left to give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import short
from gradguard.records import Finding


@dataclass
class LossScaleState:
    """`is_alarmed` stays set from a finding until the scaler applies a step again."""

    is_alarmed: bool = False


@DIAGNOSES.register
class LossScaleCollapse(Diagnosis[LossScaleState]):
    """GradScaler skipped many steps in a row, or lowered its scale below 1.

    Args:
        skips: skipped steps in a row from which it is reported, >= 1.
        min_scale: loss scale below which it is reported, > 0.
    """

    name = "loss_scale_collapse"
    sees_scaler_skips = True
    what = (
        "Mixed-precision training keeps throwing steps away: the loss scale falls and falls without curing the "
        "overflow."
    )
    computed = (
        "Counts GradScaler's skips in a row, once it has applied a step (before that it is finding its scale), and "
        "reads its scale. A NaN loss is told from an overflow. Pass scaler=... to attach."
    )
    cure = (
        "A NaN is no overflow: no scale cures it, look at the data and the loss. For Inf: lower the learning rate, "
        "clip, or use bfloat16, which needs no loss scale."
    )
    source = "torch.amp.GradScaler; GLM-130B's log shows the scale falling 30 steps before the loss explodes"
    follows = ("nonfinite",)
    precedence = 5

    skips: int = Field(default=5, ge=1)
    min_scale: float = Field(default=1.0, gt=0)

    def rests_when_quiet(self) -> bool:
        return self.min_scale <= 1.0

    def init(self, table: ParameterTable, rows: Sequence[int]) -> LossScaleState:
        return LossScaleState()

    def update(self, state: LossScaleState, stats: StepStats) -> tuple[LossScaleState, Finding | None]:
        is_low = stats.loss_scale < self.min_scale
        if stats.scaler_skips < self.skips and not is_low:
            state.is_alarmed = False
            return state, None
        if state.is_alarmed:
            return state, None
        state.is_alarmed = True
        is_nan = stats.has_loss and math.isnan(stats.loss)
        cause = "The loss is NaN, which no loss scale cures" if is_nan else "The gradients keep overflowing"
        return state, Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="critical",
            statistic="loss scale" if is_low else "steps skipped by GradScaler in a row",
            value=stats.loss_scale if is_low else stats.scaler_skips,
            threshold=self.min_scale if is_low else self.skips,
            message=(
                f"GradScaler skipped {stats.scaler_skips} steps in a row "
                f"(scale now {short(stats.loss_scale)}). {cause}."
            ),
            advice=self.cure,
            evidence={"kind": "NaN" if is_nan else "Inf", "loss_scale": stats.loss_scale},
        )
