"""The gradient dies on its way back to the first layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.stats import ABSENT, ParameterTable, StepStats
from gradguard.evidence.trigger import Calm
from gradguard.printable import short
from gradguard.records import MAX_NAMES, Finding


STRIDE = 10  # steps between checks
CHECKS = 5  # checks whose median is judged
CONFIRM = 3  # checks in a row that must agree
REPEAT_AFTER = 500  # steps between two findings while it lasts


@dataclass
class VanishingState:
    """The weight matrices looked at, and the last checks.

    `confirmed` counts checks in a row that were below the limits and is reset by one that is not.
    """

    table: ParameterTable
    matrices: npt.NDArray[np.int64]
    spreads: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)
    confirmed: int = 0
    last_alarm: int = -(10**9)


@DIAGNOSES.register
class VanishingGradient(Diagnosis[VanishingState]):
    """The first layers get a gradient that is tiny beside their weights and beside the last layers' gradient.

    Args:
        max_spread: largest over smallest norm(gradient)/norm(weight) of the weight matrices, > 1.
        min_first_to_last: gradient norm of the first matrix over that of the last, in (0, 1).
    """

    name = "vanishing_gradient"
    what = "The gradient shrinks from layer to layer on its way back, so the first layers hardly learn."
    computed = (
        "r = norm(grad)/norm(weight) per weight matrix, S = max r / min r, rho = norm(grad of the first "
        "matrix)/norm(grad of the last). Checked every 10 steps; alarm when the medians of 5 checks have S > "
        "max_spread and rho < min_first_to_last three times in a row while the loss is above half its initial value."
    )
    cure = (
        "Use ReLU, LeakyReLU, ELU or GELU in place of sigmoid or tanh; He initialisation with ReLU, Xavier with tanh; "
        "add batch or layer normalisation; add residual connections; for recurrent nets use LSTM or GRU."
    )
    source = "Glorot and Bengio 2010; limits: healthy set-ups S <= 57, rho >= 0.046, failing S >= 2.6e4, rho <= 1e-4"
    follows = ("bad_initialization", "exploding_gradient", "saturated_units")
    lasts = STAYS
    precedence = 35

    max_spread: float = Field(default=1e3, gt=1)
    min_first_to_last: float = Field(default=1e-2, gt=0, lt=1)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> VanishingState:
        return VanishingState(table, np.array([row for row in rows if table.is_matrix[row]], dtype=np.int64))

    def update(self, state: VanishingState, stats: StepStats) -> tuple[VanishingState, Finding | None]:
        if stats.has_loss and len(state.first_losses) < CHECKS and math.isfinite(stats.loss):
            state.first_losses.append(stats.loss)
        if stats.step % STRIDE or not stats.finite or len(state.matrices) < 3:
            return state, None
        norms = stats.norms[state.matrices]
        weights = stats.weight_norms[state.matrices]
        usable = (norms != ABSENT) & (weights > 0) & (weights < np.inf)
        if np.count_nonzero(usable) < 3:
            return state, None
        norms, weights = norms[usable].astype(np.float64), weights[usable].astype(np.float64)
        if not norms[-1] > 0:
            return state, None
        relative = norms / weights
        state.spreads.append(float(relative.max()) / max(float(relative.min()), 1e-300))
        state.ratios.append(float(norms[0] / norms[-1]))
        del state.spreads[:-CHECKS], state.ratios[:-CHECKS]
        return state, self._judge(state, stats, relative, state.matrices[usable])

    def pass_by(self, state: VanishingState, stats: StepStats) -> VanishingState:
        return state if stats.step % STRIDE else self.update(state, stats)[0]

    def calm(self, state: VanishingState, stats: StepStats) -> Calm | None:
        if stats.has_loss and len(state.first_losses) < CHECKS:
            return None
        return Calm((CONFIRM - min(state.confirmed, CONFIRM)) * STRIDE - 1 - stats.step % STRIDE)

    def _judge(
        self,
        state: VanishingState,
        stats: StepStats,
        relative: npt.NDArray[np.float64],
        rows: npt.NDArray[np.int64],
    ) -> Finding | None:
        spread, ratio = median(state.spreads), median(state.ratios)
        is_unequal = spread > self.max_spread and ratio < self.min_first_to_last
        if not is_unequal or (state.first_losses and stats.loss < 0.5 * median(state.first_losses)):
            state.confirmed = 0
            return None
        state.confirmed += 1
        if state.confirmed < CONFIRM or stats.step - state.last_alarm < REPEAT_AFTER:
            return None
        state.last_alarm = stats.step
        weakest = rows[np.argsort(relative)]
        names = [state.table.names[i] for i in weakest if relative[rows == i][0] * 100 < relative.max()]
        first = state.table.names[int(rows[0])]
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="gradient norm of the first layer over the last",
            value=ratio,
            threshold=self.min_first_to_last,
            window=CHECKS * STRIDE,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(names),
            message=f"{first} gets {short(ratio, 1)} of the last layer's gradient: the first layers hardly learn.",
            advice=self.cure,
            evidence={"spread": spread, "max_spread": self.max_spread},
            indices=tuple(int(i) for i in weakest[: len(names)]),
        )
