"""One update of the optimizer far above its own usual size, whatever the gradient looked like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.running import MAD_TO_SIGMA, largest_but_outliers
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import short
from gradguard.records import MAX_NAMES, Finding, Severity


MIN_DEVIATION = 0.1  # floor of the deviation in ln units
HABIT = 1.5  # over the largest update but for outliers: what was there four times in a window is a habit
HOPELESS = 100.0  # times the usual update, from which it is critical


@dataclass
class SpikeState:
    """The logarithms of the last update norms, newest last, each for the learning rate that it was made with."""

    table: ParameterTable
    rows: npt.NDArray[np.int64]
    logs: list[float] = field(default_factory=list)
    lr_max: float = 0.0


@DIAGNOSES.register
class UpdateSpike(Diagnosis[SpikeState]):
    """The norm of one update stands far above the updates before it.

    Args:
        zscore: robust z of ln(norm) from which it is a spike, > 0.
        ratio: and norm over the window's median from which it is, > 1.
        window: updates that it is compared with, >= 5 and at most 100,000.
        warmup: updates before one is judged, >= 2.
    """

    name = "update_spike"
    what = "One update of the weights was far larger than usual: the optimizer's memory made it so, or a bad gradient."
    computed = (
        "z = (ln v - median ln v) / max(1.4826 MAD, 0.1) over the updates that were looked at, where v is the norm of "
        "the whole update over the learning rate, so that a schedule that returns to an earlier rate is no spike; a "
        "rate never used before counts in full. Alarm: z > zscore, v > ratio x median, and 1.5 times above the largest "
        "but for three outliers; critical from 100 x median."
    )
    cure = (
        "Lower the learning rate or Adam's beta2 (0.95), raise its epsilon, warm up longer; clip the gradient; look at "
        "the samples of that step."
    )
    source = "Wortsman et al. 2023 (loss spikes follow updates that Adam's second moment underestimates)"
    follows = ("nonfinite", "exploding_gradient", "loss_spike")
    reads = frozenset({"updates"})
    precedence = 25

    zscore: float = Field(default=6.0, gt=0)
    ratio: float = Field(default=10.0, gt=1)
    window: int = Field(default=50, ge=5, le=100_000)
    warmup: int = Field(default=10, ge=2)

    def rests_when_quiet(self) -> bool:
        return True

    def init(self, table: ParameterTable, rows: Sequence[int]) -> SpikeState:
        return SpikeState(table, np.array(rows, dtype=np.int64))

    def update(self, state: SpikeState, stats: StepStats) -> tuple[SpikeState, Finding | None]:
        updates = stats.updates
        if updates is None or not updates.lr > 0.0 or not len(state.rows):
            return state, None
        norms = updates.update_norms[state.rows].astype(np.float64)
        norm = float(np.linalg.norm(norms[np.isfinite(norms)]))
        usual_lr = min(updates.lr, state.lr_max) or updates.lr
        state.lr_max = max(state.lr_max, updates.lr)
        if not 0.0 < norm < math.inf:
            return state, None
        log = math.log(norm) - math.log(usual_lr)
        finding = self._judge(state, stats, log, norm, usual_lr, norms) if len(state.logs) >= self.warmup else None
        state.logs.append(log)
        del state.logs[: -self.window]
        return state, finding

    def _judge(
        self,
        state: SpikeState,
        stats: StepStats,
        log: float,
        norm: float,
        usual_lr: float,
        norms: npt.NDArray[np.float64],
    ) -> Finding | None:
        logs = np.array(state.logs)
        median = float(np.median(logs))
        deviation = max(float(MAD_TO_SIGMA * np.median(np.abs(logs - median))), MIN_DEVIATION)
        z = (log - median) / deviation
        is_habit = not log > math.log(HABIT) + largest_but_outliers(sorted(state.logs))
        if not (z > self.zscore and log - median > math.log(self.ratio)) or is_habit:
            return None
        usual = math.exp(min(median + math.log(usual_lr), 700.0))
        severity: Severity = "critical" if log - median > math.log(HOPELESS) else "warn"
        worst = np.argsort(-np.nan_to_num(norms))
        times = math.exp(min(log - median, 700.0))
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="norm of the update",
            value=norm,
            baseline=usual,
            threshold=self.ratio * usual,
            window=self.window,
            parameters=tuple(state.table.names[int(state.rows[i])] for i in worst[:MAX_NAMES]),
            num_parameters=len(state.rows),
            message=f"The weights were moved by {short(norm)}, {short(times)} times the usual {short(usual)}.",
            advice="If it comes back: lower the learning rate or Adam's beta2, or clip the gradient.",
            evidence={"z": z, "lr": stats.lr},
        )
