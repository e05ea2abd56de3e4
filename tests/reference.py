"""Slow and obvious: what the package computes, in float64 and one parameter, one step, one entry at a time.

Only the constants that were chosen by measurement are the package's own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gradguard.diagnoses import divergence as divergence_module
from gradguard.diagnoses import exploding_gradient as exploding_module
from gradguard.diagnoses import loss_spike as spike_module


FLOAT32_MAX = float(np.finfo(np.float32).max)


def entries(gradient: torch.Tensor) -> list[float]:
    """Return every entry as a float; complex ones as two."""
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    flat = dense.detach().resolve_conj().reshape(-1)
    if flat.is_complex():
        return [part for entry in flat.tolist() for part in (entry.real, entry.imag)]
    return [float(entry) for entry in flat.tolist()]


def norm(gradient: torch.Tensor) -> float:
    """Return the L2 norm of the finite entries; `hypot` neither overflows nor underflows on the way."""
    return math.hypot(*[entry for entry in entries(gradient) if math.isfinite(entry)])


def num_nonfinite(gradient: torch.Tensor) -> tuple[int, int]:
    """Return (NaN entries, infinite entries)."""
    values = entries(gradient)
    return sum(map(math.isnan, values)), sum(map(math.isinf, values))


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return what a gradient of this norm is multiplied by."""
    return max_norm / (norm + 1e-6) if norm + 1e-6 > max_norm else 1.0


def lower_median(values: Sequence[float]) -> float:
    """Return the middle value, of two the lower; NaN of nothing."""
    return statistics.median_low(values) if values else math.nan


def deviation(values: Sequence[float]) -> float:
    """Return 1.4826 times the median distance from the median; NaN of nothing."""
    if not values:
        return math.nan
    middle = statistics.median(values)
    return 1.4826 * statistics.median([abs(value - middle) for value in values])


def upper(values: Sequence[float]) -> float:
    """Return the largest value but for outliers: a fifth of them, three at most; NaN of nothing."""
    num_outliers = 3 if len(values) >= 15 else len(values) // 5
    return sorted(values)[len(values) - 1 - num_outliers] if values else math.nan


@dataclass
class NormHistory:
    """Every norm that one row ever had."""

    values: list[float] = field(default_factory=list)

    def accepted(self, window: int) -> list[float]:
        """Return what counts of the last `window` steps: finite and above zero."""
        return [value for value in self.values[-window:] if math.isfinite(value) and value > 0]


@dataclass(frozen=True)
class Alarm:
    """What stood out: rows of (global, parameter 0, parameter 1, ...)."""

    kind: str
    rows: tuple[int, ...]


class ExplodingGradient:
    """The definition of `exploding_gradient`, row by row.

    Args:
        num_parameters: P.
        rows: parameters looked at; None for all.
    """

    def __init__(
        self, num_parameters, rows=None, *, zscore, ratio, extreme_ratio, window, warmup, max_update=10.0, is_deep=False
    ):
        self.is_deep = is_deep
        self.zscore, self.ratio, self.extreme_ratio = zscore, ratio, extreme_ratio
        self.window, self.warmup, self.max_update = window, min(warmup, window), max_update
        self.sees_all = rows is None
        self.rows = [
            *([0] if rows is None else []),
            *(row + 1 for row in (range(num_parameters) if rows is None else rows)),
        ]
        self.history = [NormHistory() for _ in range(num_parameters + 1)]
        self.start: list[float] | None = None
        self.hot_at = {row: -10 for row in self.rows}

    def step(self, step: int, levels: Sequence[float], lr: float = 0.0, reach: float = math.inf) -> Alarm | None:
        """Judge one step and then learn from it.

        Args:
            step: its number.
            levels: (P + 1,) norms, the global one first; -1 where there is no gradient.
            lr: learning rate.
            reach: norm of all weights when the optimizer is SGD.
        """
        is_finite = all(math.isfinite(level) for level in levels)
        if any(FLOAT32_MAX <= levels[row] < math.inf for row in self.rows if row > 0):
            alarm: Alarm | None = Alarm("overflow", (0,))
        else:
            alarm = self._judge(step, levels, lr, reach) if is_finite else None
        if len(self.history[0].values) >= self.warmup and self.start is None:
            self.start = [lower_median(row.accepted(self.window)) for row in self.history]
        if is_finite:
            for row, level in zip(self.history, levels, strict=True):
                row.values.append(level)
        return alarm

    def _judge(self, step: int, levels: Sequence[float], lr: float, reach: float) -> Alarm | None:
        before = self.history[0].values[-1] if self.history[0].values else 0.0
        far = lr * levels[0] / (self.max_update * reach)
        has_grown = levels[0] > exploding_module.GROWTH * before > 0
        if self.sees_all and far > 1 and (has_grown or (far > exploding_module.HOPELESS and self.is_deep)):
            return Alarm("reach", (0,))
        usual = [row.accepted(self.window) for row in self.history]
        if len(self.history[0].values) < self.warmup:
            is_early = (
                self.sees_all
                and len(usual[0]) >= exploding_module.EARLY
                and levels[0] > self.extreme_ratio * max(usual[0])
            )
            return Alarm("early", (0,)) if is_early else None
        start = self.start or [lower_median(values) for values in usual]
        alarmed = []
        for row in self.rows:
            level, median = levels[row], lower_median(usual[row])
            counts = len(usual[row]) >= self.warmup and not level < start[row]
            counts = counts and level > exploding_module.HABIT * upper(usual[row])
            if not counts or not level > self.ratio * median:
                continue
            logs = [math.log(value) for value in usual[row]]
            z = math.log(level / median) / max(deviation(logs), exploding_module.MIN_DEVIATION)
            is_extreme = level > self.extreme_ratio * median
            if row == 0 and level > self.extreme_ratio**2 * median:
                alarmed.append(row)
                continue
            if row > 0 and self.sees_all:
                if is_extreme and z > exploding_module.PARAMETER_Z * self.zscore:
                    alarmed.append(row)
            elif z > self.zscore:
                if is_extreme or step - self.hot_at[row] <= 2:
                    alarmed.append(row)
                if not is_extreme:
                    self.hot_at[row] = step
        return Alarm("level", tuple(alarmed)) if alarmed else None


class LossSpike:
    """The definition of `loss_spike`."""

    def __init__(self, *, zscore, window, warmup, ratio=3.0):
        self.zscore, self.window, self.warmup, self.ratio = zscore, window, min(warmup, window), ratio
        self.losses: list[float] = []
        self.first: list[float] = []
        self.rates: list[float] = []

    def step(self, loss: float, lr: float = 0.0, is_learned: bool = True) -> bool:
        """Judge one loss and then learn from it, unless its gradient was bad; return whether it is a spike."""
        if not math.isfinite(loss):
            return False
        first = [*self.first, loss][: spike_module.NUM_FIRST]
        self.first = first
        initial = sorted(first)[len(first) // 2]
        self.rates.append(lr)
        is_spike = self._is_spike(loss, lr, self.losses[-self.window :], initial)
        if is_learned:
            self.losses.append(loss)
        return is_spike

    def _is_spike(self, loss: float, lr: float, recent: list[float], initial: float) -> bool:
        if len(recent) < min(spike_module.EARLY, self.window) or not loss > upper(recent):
            return False
        if len(recent) < self.warmup:
            return min(recent) > 0 and loss > spike_module.EARLY_RATIO * max(recent) and loss > initial
        median, least = lower_median(recent), spike_module.MIN_DEVIATION
        if min(recent) > 0:
            z = math.log(loss / median) / max(deviation([math.log(value) for value in recent]), least)
            is_undone = loss > spike_module.UNDONE_LOSS * initial and median < spike_module.LEARNED_LOSS * initial
            if not (loss > self.ratio * median or is_undone):
                return False
        else:
            scale = max(deviation(recent), least * abs(median))
            z = (loss - median) / scale if scale > 0 else 0.0
            if not loss - upper(recent) > upper(recent) - min(recent):
                return False
        rates = sorted(self.rates[-self.window :])
        was_raised = lr > spike_module.RAISED_LR * rates[len(rates) // 2]
        if loss < spike_module.MIN_SHARE * initial or (was_raised and loss < spike_module.RAISED_LOSS * initial):
            return False
        is_worse_than_none = not loss < spike_module.BROKEN_LOSS * initial
        return z > (spike_module.BROKEN_Z * self.zscore if is_worse_than_none else self.zscore)


class Divergence:
    """The definition of `divergence`; `step` returns its severity, or None."""

    def __init__(self, *, ratio=1.5):
        self.ratio = ratio
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.last_alarm = -(10**9)

    def step(self, step: int, loss: float, norm: float) -> str | None:
        """Take one step in and judge the run so far."""
        if not math.isfinite(loss) or not math.isfinite(norm):
            return None
        self.losses.append(loss)
        self.norms.append(norm)
        severity = self._judge(step)
        if severity is not None:
            self.last_alarm = step
        return severity

    def _judge(self, step: int) -> str | None:
        if step < divergence_module.RUNAWAY_STEPS and len(self.losses) >= 3:
            (a, b, c), (x, y, z) = self.losses[-3:], self.norms[-3:]
            growth = divergence_module.RUNAWAY_RATIO
            if a < b < c and x > 0 and y > growth * x and z > growth * y:
                return "critical"
        if len(self.losses) < 10 or step < 10 or self.losses[-1] < self.losses[0]:
            return None
        if step - self.last_alarm < divergence_module.REPEAT_AFTER:
            return None
        first, recent = self.losses[:5], self.losses[-10:]
        initial, level = min(first[0], lower_median(first)), lower_median(recent)
        noise = max(first) - min(first) if min(first) <= 0 else 0.0
        if not level > initial + (self.ratio - 1.0) * abs(initial) + 3.0 * noise:
            return None
        has_grown = lower_median(self.norms[-10:]) > divergence_module.GRADIENT_RATIO * self.norms[0]
        still_rises = lower_median(recent[5:]) > 2.0 * lower_median(recent[:5])
        is_far = level > divergence_module.LOSS_RATIO * abs(initial)
        is_lost = step < divergence_module.LOST_STEPS and level > divergence_module.LOST_RATIO * abs(initial)
        if has_grown and ((still_rises and is_far) or is_lost):
            return "critical"
        base = lower_median(first)
        is_high = level > base + (self.ratio - 1.0) * abs(base) + 3.0 * noise
        return "info" if is_high and step - self.last_alarm >= divergence_module.REPEAT_INFO_AFTER else None


def gradient_statistics(gradient: torch.Tensor) -> dict[str, float | list[float]]:
    """Return mean, std, max, min, zero ratio, norm and histogram of one gradient that has entries."""
    values = entries(gradient)
    count = len(values)
    largest, smallest = (math.nan, math.nan) if any(map(math.isnan, values)) else (max(values), min(values))
    shares = {"max": largest, "min": smallest, "zero_ratio": sum(value == 0 for value in values) / count}
    if not all(map(math.isfinite, values)):
        norm_of_all = math.nan if any(map(math.isnan, values)) else math.inf
        return {**shares, "mean": math.nan, "std": math.nan, "norm": norm_of_all, "histogram": [math.nan] * 25}
    mean = math.fsum(value / count for value in values)
    std = math.hypot(*[value - mean for value in values]) / math.sqrt(count)
    histogram = [0.0] * 25
    top = magnitude(max(map(abs, values)))
    for value in values:
        place = 12 - (top - magnitude(value))  # 12 for the largest magnitudes, 1 for the smallest that are told apart
        is_apart = place >= 1 and magnitude(value) >= 1
        histogram[12 + (0 if not is_apart else place if value > 0 else -place)] += 1 / count
    return {**shares, "mean": mean, "std": std, "norm": norm(gradient), "histogram": histogram}


def magnitude(value: float) -> int:
    """Return the largest b with 2^(2b - 127) <= abs(value), from 0 to 127."""
    fitting = [b for b in range(1, 128) if 2.0 ** (2 * b - 127) <= abs(value)]
    return fitting[-1] if fitting else 0
