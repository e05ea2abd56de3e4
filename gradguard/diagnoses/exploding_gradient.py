"""A gradient norm far above its own recent level, for the model as a whole or for one parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.running import NormWindow
from gradguard.evidence.stats import FloatArray, ParameterTable, StepStats
from gradguard.evidence.trigger import Calm, Trigger
from gradguard.limits.norm_limit import NO_BASELINE
from gradguard.printable import short
from gradguard.records import MAX_NAMES, Finding, Severity


EARLY = 5  # steps from which an extreme global norm is believed although the window is still short
MIN_DEVIATION = 0.1  # floor of the deviation in ln units: a calm window must not make 10 % look like an outlier
CALM_STEPS = 19  # for which norms should be bounded beforehand, where that is cheap
HOPELESS = 10.0  # times max_update, from which no growth is needed in a model of several layers
HABIT = 1.5  # over the largest norm but for outliers: what was there four times in a window is a habit
GROWTH = 10.0  # over the step before, from which an update larger than the weights is a run that runs away
START = 50  # steps in which a short window means that the run has just begun, perhaps anew
PARAMETER_Z = 1.5  # a single parameter must stand out further: there are many of them, each with its own noise
SHARE = 50.0  # below this many times the usual global norm it is only worth knowing


@dataclass
class ExplodingState:
    """Rows looked at, when each was last hot, and the level that the run started with.

    `start` is set once, when the window first holds `warmup` steps.
    """

    table: ParameterTable
    rows: npt.NDArray[np.bool_]
    covers_all: bool
    last_hot: npt.NDArray[np.int64]
    start: FloatArray | None = None
    last_norm: float = 0.0


@DIAGNOSES.register
class ExplodingGradient(Diagnosis[ExplodingState]):
    """The gradient norm is far above its own rolling level; also a norm that overflowed with finite entries.

    Args:
        about: "level" looks at norms that stand out, "start" at SGD updates larger than the weights in the first steps,
            as a learning rate makes that is too high, "overflow" at norms that float32 cannot compute, "any" at all.
        zscore: robust z of ln(norm) from which a step is hot, > 0.
        ratio: and norm over rolling median from which it is, > 1; two hot steps in three raise the alarm.
        extreme_ratio: norm over rolling median from which one step alone does, > 1.
        window: steps of the rolling statistics, >= 5 and at most 100,000.
        warmup: accepted steps before a row is judged, >= 2; an extreme global norm is believed after 5.
        max_update: with SGD, lr x norm(gradient) over norm(weights) from which a gradient that grew tenfold since the
            step before is alarming, before anything is armed, > 0.
    """

    name = "exploding_gradient"
    what = "The gradient is many times larger than it has been: one update of this size can undo the training so far."
    computed = (
        "z = (ln g - median ln g) / max(1.4826 MAD, 0.1) over the window, for the global norm and for each parameter. "
        "Alarm, with g above the level of the first steps and 1.5 times above the window's largest norm but for three "
        "outliers: z > zscore and g > ratio x median twice within 3 steps, or g > extreme_ratio x median once; the "
        "global norm also at extreme_ratio^2 x median whatever z. Where all parameters are watched a single one needs "
        "extreme_ratio and 1.5 x zscore, and is only worth knowing (info) while its norm stays below 50 times the "
        "usual global norm. With SGD also, before anything is armed, when lr x g > max_update x norm(weights) and g "
        "grew tenfold in one step, or tenfold that in a model of several layers. Norms are measured before any remedy, "
        "so a lasting change of level ends the alarm by itself."
    )
    cure = (
        "Lower the learning rate or warm it up; clip the gradient norm; He or Xavier initialisation; layer or batch "
        "normalisation; residual connections; for recurrent nets gated cells and orthogonal weights."
    )
    source = "Pascanu et al. 2013 (clipping by norm); thresholds chosen on healthy and failing set-ups, 2026-11"
    follows = ("bad_inputs", "bad_initialization", "stale_gradients", "update_spike", "loss_spike")
    precedence = 20
    is_foreseeable = True

    about: Literal["any", "start", "level", "overflow"] = "any"
    zscore: float = Field(default=6.0, gt=0)
    ratio: float = Field(default=20.0, gt=1)
    extreme_ratio: float = Field(default=100.0, gt=1)
    window: int = Field(default=50, ge=5, le=100_000)
    warmup: int = Field(default=20, ge=2)
    max_update: float = Field(default=10.0, gt=0)

    def windows(self) -> Sequence[int]:
        return (self.window,)

    def rests_when_quiet(self) -> bool:
        return self.about == "overflow"

    def init(self, table: ParameterTable, rows: Sequence[int]) -> ExplodingState:
        covers_all = len(rows) == len(table)
        mask = np.zeros(len(table) + 1, dtype=bool)
        mask[0] = covers_all
        mask[np.array(rows, dtype=np.int64) + 1] = True
        return ExplodingState(table, mask, covers_all, np.full(len(table) + 1, -10, dtype=np.int64))

    def update(self, state: ExplodingState, stats: StepStats) -> tuple[ExplodingState, Finding | None]:
        if self._is_calm(state, stats):
            state.last_norm = stats.global_norm
            return state, None
        if self.about in ("any", "overflow") and (rows := [row for row in stats.overflowed if state.rows[row + 1]]):
            return state, self._overflow(state, stats, rows)
        if self.about == "overflow":
            return state, None
        window = stats.windows[self.window]
        before = state.last_norm
        if stats.finite:
            state.last_norm = stats.global_norm
        is_far = stats.finite and stats.lr * stats.global_norm > self.max_update * stats.sgd_reach
        if is_far and state.covers_all and self._sees_updates(stats):
            is_hopeless = stats.lr * stats.global_norm > HOPELESS * self.max_update * stats.sgd_reach
            if stats.global_norm > GROWTH * before > 0 or (is_hopeless and state.table.is_matrix.sum() > 1):
                return state, self._too_far(state, stats)
        if self.about == "start":
            return state, None
        if window.steps < min(self.warmup, self.window):
            return state, self._early(state, stats, window)
        if state.start is None:
            state.start = window.median.copy()
        hot = stats.levels * np.float32(1.0 / self.ratio) > window.median  # written so that nothing can overflow
        if not np.count_nonzero(hot) or not stats.finite:
            return state, None
        return state, self._judge(state, stats, window, np.flatnonzero(hot & state.rows))

    def _sees_updates(self, stats: StepStats) -> bool:
        """Return whether updates larger than the weights are looked at.

        Before the very first step no learning rate can have done it, and a window may also be short after a rebaseline.
        """
        is_start = 0 < stats.step < START and stats.windows[self.window].steps < min(self.warmup, self.window)
        return self.about == "any" or self.about == ("start" if is_start else "level")

    def _is_calm(self, state: ExplodingState, stats: StepStats) -> bool:
        """Return True only on a step that surely is no finding, by comparisons that a healthy step can afford."""
        return (
            stats.is_plain
            and state.start is not None
            and stats.lr * stats.global_norm <= self.max_update * stats.sgd_reach
            and stats.windows[self.window].is_surely_below(stats.levels, self.ratio)
        )

    def pass_by(self, state: ExplodingState, stats: StepStats) -> ExplodingState:
        state.last_norm = stats.global_norm
        return state

    def calm(self, state: ExplodingState, stats: StepStats) -> Calm | None:
        if self.rests_when_quiet() or (self.about == "start" and not self._sees_updates(stats)):
            return Calm()
        bound = stats.windows[self.window].surely_below(self.ratio, CALM_STEPS) if state.start is not None else None
        if bound is None:
            return None
        levels, steps = bound
        return Calm(steps, levels=levels, reach=self.max_update * stats.sgd_reach)

    def triggers(self, state: ExplodingState, stats: StepStats) -> Sequence[Trigger]:
        if not state.covers_all or self.about == "overflow":
            return ()
        window = stats.windows[self.window]
        found = []
        if self._sees_updates(stats) and stats.lr > 0 and stats.sgd_reach < math.inf:
            reach = self.max_update * stats.sgd_reach / stats.lr
            grown = max(reach, GROWTH * state.last_norm) if state.last_norm > 0 else math.inf
            hopeless = HOPELESS * reach if state.table.is_matrix.sum() > 1 else math.inf
            found.append(Trigger("global_norm", min(grown, hopeless), has_baseline=False))
        if self.about == "start":
            return found
        if window.steps < min(self.warmup, self.window):
            if window.counts[0] >= EARLY:
                found.append(Trigger("global_norm", self.extreme_ratio * window.maximum(0)))
        elif window.counts[0] >= min(self.warmup, self.window):
            found.append(Trigger("global_norm", self._alarm_level(state, stats, window)))
        return found

    def _alarm_level(self, state: ExplodingState, stats: StepStats, window: NormWindow) -> float:
        """Return the global norm above which `_judge` raises the alarm: each of its conditions, solved for the norm."""
        median = float(window.median[0])
        start = float((window.median if state.start is None else state.start)[0])
        outlier = median * math.exp(self.zscore * max(window.log_deviation(0), MIN_DEVIATION))
        alarm = min(self.extreme_ratio**2 * median, max(self.extreme_ratio * median, outlier))
        if stats.step - state.last_hot[0] <= 2:
            alarm = min(alarm, outlier)
        at_start = math.nextafter(start, 0.0) if start == start else 0.0
        return max(alarm, self.ratio * median, HABIT * window.upper(0), at_start)

    def _judge(
        self, state: ExplodingState, stats: StepStats, window: NormWindow, rows: npt.NDArray[np.int64]
    ) -> Finding | None:
        alarmed = []
        start = state.start
        for row in rows.tolist():
            level, median = float(stats.levels[row]), float(window.median[row])
            if window.counts[row] < min(self.warmup, self.window):
                continue
            if start is not None and start[row] == start[row] and level < float(start[row]):
                continue
            if not level > HABIT * window.upper(row):
                continue
            z = self._z(level, median, window, row)
            is_one_of_many = row > 0 and state.covers_all
            is_beyond_doubt = row == 0 and level > self.extreme_ratio**2 * median  # a steady growth has no outliers
            needed = (PARAMETER_Z if is_one_of_many else 1.0) * self.zscore
            if is_beyond_doubt or (level > self.extreme_ratio * median and z > needed):
                alarmed.append(row)
            elif not is_one_of_many and z > self.zscore:
                if stats.step - state.last_hot[row] <= 2:
                    alarmed.append(row)
                state.last_hot[row] = stats.step
        return self._finding(state, stats, window, alarmed) if alarmed else None

    def _z(self, level: float, median: float, window: NormWindow, row: int) -> float:
        return math.log(level / median) / max(window.log_deviation(row), MIN_DEVIATION)

    def _early(self, state: ExplodingState, stats: StepStats, window: NormWindow) -> Finding | None:
        if not state.covers_all or window.counts[0] < EARLY or not stats.finite:
            return None
        if not float(stats.levels[0]) > self.extreme_ratio * window.maximum(0):
            return None
        return self._finding(state, stats, window, [0])

    def _finding(self, state: ExplodingState, stats: StepStats, window: NormWindow, rows: list[int]) -> Finding:
        rows = sorted(rows, key=lambda row: -float(stats.levels[row]) / float(window.median[row]))
        is_global = 0 in rows
        row = 0 if is_global else rows[0]
        level = stats.global_norm if row == 0 else float(stats.levels[row])
        median = float(window.median[row])
        members = tuple(r - 1 for r in rows if r > 0)
        names = [state.table.names[i] for i in members]
        what = "gradient norm" if is_global else f"gradient norm of {names[0]}"
        is_lost_among_others = not is_global and state.covers_all and level < SHARE * float(window.median[0])
        severity: Severity = "critical" if level > self.extreme_ratio * median else "warn"
        if is_global and not names:
            usual = np.nan_to_num(window.median[1:].astype(np.float64))
            names = [state.table.names[int(np.argmax(np.square(stats.norms.astype(np.float64)) - np.square(usual)))]]
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="info" if is_lost_among_others else severity,
            statistic=what,
            value=level,
            baseline=median,
            threshold=self.ratio * median,
            window=self.window,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(state.table) if is_global else len(members),
            message=f"The {what} is {short(level)}, {short(level / median)} times its usual {short(median)}.",
            advice="If it comes back: lower the learning rate or warm it up, check initialisation and normalisation.",
            evidence={"z": self._z(level, median, window, row), "scope": "global" if is_global else "parameters"},
            indices=() if is_global else members,
        )

    def _too_far(self, state: ExplodingState, stats: StepStats) -> Finding:
        reach = stats.lr * stats.global_norm / stats.sgd_reach
        name = state.table.names[int(np.argmax(stats.norms))]
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="critical",
            statistic="update over weights",
            value=reach,
            threshold=self.max_update,
            parameters=(name,),
            num_parameters=len(state.table),
            message=(
                f"This SGD update is {short(reach)} times as large as the weights themselves, most of it in {name}."
            ),
            advice=(
                "Lower the learning rate, scale inputs and targets to unit variance, or initialise with smaller "
                "weights."
            ),
            evidence={"scope": "global", "gradient_norm": stats.global_norm, "lr": stats.lr, NO_BASELINE: 1},
        )

    def _overflow(self, state: ExplodingState, stats: StepStats, rows: list[int]) -> Finding:
        names = [state.table.names[i] for i in rows]
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="critical",
            statistic="gradient norm",
            value=stats.global_norm,
            window=self.window,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(names),
            message=f"The norm overflowed: {names[0]} has finite gradient entries whose squares do not fit float32.",
            advice="The loss is scaled far too high; divide it, or lower the loss scale.",
            evidence={"scope": "global", "norm_overflowed": 1, NO_BASELINE: 1},
        )
