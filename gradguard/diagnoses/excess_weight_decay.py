"""The decay of the weights outran whatever the gradient could teach them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.progress import WINDOW, share_left
from gradguard.evidence.stats import FloatArray, ParameterTable, StepStats
from gradguard.printable import short
from gradguard.records import MAX_NAMES, Finding


UNMOVED = 0.9  # of the loss at the start, down to which a run has learnt nothing
GROWTH = 2.0  # of the share over what was told before, from which it is told again


@dataclass
class DecayState:
    """The weight matrices looked at, their norms at the start, and the largest share that was told."""

    table: ParameterTable
    matrices: npt.NDArray[np.int64]
    first: FloatArray | None = None
    told: float = 0.0


@DIAGNOSES.register
class ExcessWeightDecay(Diagnosis[DecayState]):
    """Weight decay shrank the weights to a fraction of themselves while the loss did not move.

    Args:
        max_shrinkage: share of a weight that decay takes off per step, above which it can be the cause, in (0, 1).
        left: median over the matrices of norm(weight) over that at the start, below which they are shrunk, in (0, 1).
    """

    name = "excess_weight_decay"
    what = "Weight decay takes so much off the weights at every step that they are gone before they learn anything."
    computed = (
        "Sampled: lr x weight_decay, the largest of the param groups, over 1 - momentum with SGD, is above "
        "`max_shrinkage`, the median of norm(weight)/norm(weight at the start) over the matrices is below `left`, and "
        "the loss above 0.9 of its start. Not judged without a loss, nor where decay is part of a gradient that is "
        "normalised, as in Adam."
    )
    cure = "Lower the weight decay: 1e-4 (SGD) and 0.01 to 0.1 (AdamW) are usual."
    source = "Loshchilov and Hutter 2019 (decoupled decay); usual shares are 1e-6 to 1e-4, for grokking 1e-3"
    lasts = STAYS
    precedence = 11

    max_shrinkage: float = Field(default=0.01, gt=0, lt=1)
    left: float = Field(default=0.2, gt=0, lt=1)

    def rests_when_quiet(self) -> bool:
        return True

    def loss_windows(self) -> Sequence[int]:
        return (WINDOW,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> DecayState:
        return DecayState(table, np.array([row for row in rows if table.is_matrix[row]], dtype=np.int64))

    def update(self, state: DecayState, stats: StepStats) -> tuple[DecayState, Finding | None]:
        norms = stats.weight_norms[state.matrices]
        if state.first is None:
            state.first = norms.copy()
        share = stats.shrinkage
        if not self.max_shrinkage < share < math.inf or not share > GROWTH * state.told:
            return state, None
        known = state.first > 0
        left = float(np.median(norms[known] / state.first[known])) if known.any() else math.nan
        if not left < self.left or not share_left(stats) > UNMOVED:
            return state, None
        state.told = share
        names = [state.table.names[int(row)] for row in state.matrices[np.argsort(norms)]]
        return state, Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="share of the weights that decay takes off per step",
            value=share,
            baseline=1e-4,
            threshold=self.max_shrinkage,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(names),
            message=(
                f"Weight decay takes {short(share, 2)} of the weights per step: {left:.0%} of them are left, and "
                "the loss has not moved."
            ),
            advice=self.cure,
            evidence={"left": left, "loss_left": share_left(stats)},
        )
