"""ZClip: a norm too many standard deviations above its moving average is cut back; here a new level is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.evidence.running import NormWindow
from gradguard.limits.norm_sets import NormSets, Rows, WideArray
from gradguard.limits.tracked import CHECK_EVERY, BoolArray, TrackedLimit, Tracker, as_levels
from gradguard.limits.windowed import FEWEST


Mode = Literal["reciprocal", "mean", "max"]


def zscore_limits(norms: WideArray, mean: WideArray, deviation: WideArray, zscore: float, mode: Mode) -> WideArray:
    """Return what norms are to be cut to, infinity where they are usual; with mode "max" the bound itself.

    With z = (norm - mean) / deviation, a norm with z > zscore is cut to mean + (zscore^2 / z) * deviation
    ("reciprocal": the further out, the harder), to the mean ("mean"), or to mean + zscore * deviation ("max").

    Args:
        norms: (n,) finite.
        mean: (n,) of what came before.
        deviation: (n,) > 0, standard deviation.
        zscore: > 0.
        mode: of the three.

    Source: Kumar et al. 2025, "ZClip: Adaptive Spike Mitigation for LLM Pre-Training".

    Example:
        >>> zscore_limits(np.array([1.2, 6.0]), np.ones(2), np.ones(2), 2.5, "reciprocal")
        array([ inf, 2.25])
    """
    margin = zscore * deviation
    if mode == "max":
        return mean + margin
    target = mean + margin**2 / np.maximum(norms - mean, margin) if mode == "reciprocal" else mean
    return np.where(norms > mean + margin, target, np.inf)


class ZScore(TrackedLimit):
    """A limit on how far a norm may be above its moving average.

    Args:
        zscore: standard deviations, > 0.
        mode: what a norm beyond is cut to: "reciprocal", "mean" or "max"; see `zscore_limits`.
        decay: of the moving average and variance, in (0, 1).
        warmup: norms of which the first average and variance are made, >= 2.
        min_deviation: the standard deviation counts as at least this share of the average, > 0, so that norms that
            hardly vary are not cut for varying at all.
        release: once most of the last so many norms would be cut, or all of them are below the average, the average is
            that of these; steps, >= 10.
        fallback: limit during the warm-up, and for findings that were not made against the run's own level, > 0.
    """

    zscore: float = Field(gt=0)
    mode: Mode = "reciprocal"
    decay: float = Field(default=0.97, gt=0, lt=1)
    warmup: int = Field(default=25, ge=2)
    min_deviation: float = Field(default=0.1, gt=0)
    release: int = Field(default=50, ge=10)
    fallback: float = Field(default=1.0, gt=0)

    @property
    def is_foreseeable(self) -> bool:
        """See `TrackedLimit.is_foreseeable`."""
        return self.mode == "max"

    def track(self, sets: NormSets) -> ZScoreTracker:
        """See `TrackedLimit.track`."""
        return ZScoreTracker(self, sets)


class ZScoreTracker(Tracker):
    """Moving average and variance of what the norms were cut to; see `Tracker`.

    Attributes:
        counts: (n,) norms so far, up to the warm-up.
        mean: (n,) of the norms; the average of those so far during the warm-up.
        variance: (n,) likewise, about the mean.
        recent: the last norms as they came.
        pushes: steps so far, modulo the time between looks at the level.
    """

    state = ("counts", "mean", "variance", "recent", "pushes")

    def __init__(self, options: ZScore, sets: NormSets) -> None:
        self._options = options
        super().__init__(sets)

    def forget(self) -> None:
        """See `Tracker.forget`."""
        self.counts: npt.NDArray[np.int64] = np.zeros(len(self.sets), dtype=np.int64)
        self.mean = np.zeros(len(self.sets))
        self.variance = np.zeros(len(self.sets))
        self.recent = NormWindow(len(self.sets), self._options.release)
        self.pushes = 0

    def learn(self, norms: WideArray, accepted: BoolArray, total: float) -> None:
        """See `Tracker.learn`."""
        is_warm = self.counts >= self._options.warmup
        usual = np.minimum(norms, self._limits(norms))
        # Before the warm-up is over every norm has the same weight, and counts as it is.
        values = np.where(is_warm, usual, norms)
        weight = np.where(is_warm, 1.0 - self._options.decay, 1.0 / (self.counts + 1.0))
        mean = self.mean + weight * (values - self.mean)
        spread = np.where(is_warm, np.square(values - mean), (values - self.mean) * (values - mean))
        variance = self.variance + weight * (spread - self.variance)
        self.mean = np.where(accepted, mean, self.mean)
        self.variance = np.where(accepted, variance, self.variance)
        self.counts = np.minimum(self.counts + accepted, self._options.warmup)
        self.recent.push(as_levels(norms, accepted))
        self.pushes = (self.pushes + 1) % CHECK_EVERY
        if self.pushes == 0:
            self._release()

    def _release(self) -> None:
        """Start the statistics of what has another level now from its last norms."""
        upper = self.mean + self._options.zscore * self._deviation()
        is_above = self.recent.median > upper
        is_below = self._highest() < self.mean
        due = (is_above | is_below) & (self.recent.counts >= FEWEST) & (self.counts >= self._options.warmup)
        for place in np.flatnonzero(due):
            norms = self.recent.ring[: self.recent.steps, place].astype(np.float64)
            norms = norms[norms > upper[place]] if is_above[place] else norms[norms == norms]
            self.mean[place], self.variance[place] = norms.mean(), norms.var()

    def _highest(self) -> WideArray:
        """Return (n,) largest recent norms, infinity for as long as fewer than `release` steps are known."""
        if self.recent.steps < self.recent.size:
            return np.full(len(self.sets), np.inf)
        return np.asarray(np.fmax.reduce(self.recent.ring, axis=0), dtype=np.float64)

    def _deviation(self) -> WideArray:
        return np.maximum(np.sqrt(self.variance), self._options.min_deviation * self.mean)

    def _limits(self, norms: WideArray) -> WideArray:
        deviation = np.maximum(self._deviation(), np.finfo(np.float64).tiny)  # 0 before the first norm
        return zscore_limits(norms, self.mean, deviation, self._options.zscore, self._options.mode)

    def limits(self, sets: Sequence[Rows], norms: WideArray, total: float) -> WideArray:
        """See `Tracker.limits`."""
        places = self.sets.places(sets)
        deviation = np.maximum(self._deviation()[places], np.finfo(np.float64).tiny)
        found = zscore_limits(norms, self.mean[places], deviation, self._options.zscore, self._options.mode)
        return np.where(self.counts[places] >= self._options.warmup, found, np.nan)
