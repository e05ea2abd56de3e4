"""AdaGC: each parameter's norm against a moving average of its own clipped norms; here none is locked out by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.evidence.running import NormWindow
from gradguard.limits.norm_sets import NormSets, Rows, WideArray
from gradguard.limits.tracked import CHECK_EVERY, LARGEST, BoolArray, TrackedLimit, Tracker, as_levels
from gradguard.limits.windowed import FEWEST


def next_gamma(gamma: WideArray, norms: WideArray, excess: float, beta: float) -> WideArray:
    """Return the moving average after one more norm: beta * gamma + (1 - beta) * min(norm, excess * gamma).

    Args:
        gamma: (n,) > 0.
        norms: (n,) of this step, finite.
        excess: lambda_rel of the paper, >= 1.
        beta: in (0, 1).

    Source: Wang et al. 2025, "AdaGC: Improving Training Stability for Large Language Model Pretraining".

    Example:
        >>> next_gamma(np.ones(2), np.array([0.5, 9.0]), 1.05, 0.98)
        array([0.99 , 1.001])
    """
    return np.asarray(beta * gamma + (1.0 - beta) * np.minimum(norms, excess * gamma))


class AdaGC(TrackedLimit):
    """A limit for each parameter, a little above the moving average of its clipped norms.

    Args:
        adagc: lambda_rel, what times the average a norm may be, >= 1.
        beta: of the moving average, in (0, 1).
        warmup: norms of a parameter during which it is clipped with the whole gradient to `fallback` (lambda_abs) and
            the average is the smallest norm that this left; steps, >= 1.
        release: an average below the rolling median of the norms as they came over this is put to the median, > 1; it
            would follow a higher level by 0.1 % a step, and may have begun with a norm of next to nothing.
        window: steps of the rolling median, >= 10 and at most 100,000.
        fallback: limit on the whole gradient during the warm-up, and on a parameter for findings that were not made
            against the run's own level, > 0.
    """

    adagc: float = Field(ge=1)
    beta: float = Field(default=0.98, gt=0, lt=1)
    warmup: int = Field(default=100, ge=1)
    release: float = Field(default=1.5, gt=1)
    window: int = Field(default=50, ge=10, le=100_000)
    fallback: float = Field(default=1.0, gt=0)

    @property
    def is_foreseeable(self) -> bool:
        """See `TrackedLimit.is_foreseeable`."""
        return False

    def track(self, sets: NormSets) -> AdaGCTracker:
        """See `TrackedLimit.track`."""
        return AdaGCTracker(self, sets)


class AdaGCTracker(Tracker):
    """The moving averages; see `Tracker`.

    Attributes:
        gamma: (n,) averages, infinite before the first norm.
        counts: (n,) norms so far, up to the warm-up.
        recent: the last norms as they came.
        pushes: steps so far, modulo the time between looks at the level.
    """

    state = ("gamma", "counts", "recent", "pushes")

    def __init__(self, options: AdaGC, sets: NormSets) -> None:
        self._options = options
        super().__init__(sets)

    def forget(self) -> None:
        """See `Tracker.forget`."""
        self.gamma = np.full(len(self.sets), np.inf)
        self.counts: npt.NDArray[np.int64] = np.zeros(len(self.sets), dtype=np.int64)
        self.recent = NormWindow(len(self.sets), self._options.window)
        self.pushes = 0

    def learn(self, norms: WideArray, accepted: BoolArray, total: float) -> None:
        """See `Tracker.learn`."""
        options = self._options
        is_warm = self.counts >= options.warmup
        known = np.where(is_warm, self.gamma, norms)  # an average of nothing is infinite: no number to go on with
        after = np.where(
            is_warm,
            next_gamma(known, norms, options.adagc, options.beta),
            np.minimum(self.gamma, norms * self._shared_factor(total)),
        )
        self.gamma = np.where(accepted, after, self.gamma)
        self.counts = np.minimum(self.counts + accepted, options.warmup)
        self.recent.push(as_levels(norms, accepted))
        self.pushes = (self.pushes + 1) % CHECK_EVERY
        if self.pushes == 0:
            due = (self.counts >= options.warmup) & (self.recent.counts >= FEWEST)
            due &= self.recent.median > options.release * self.gamma
            self.gamma = np.where(due, self.recent.median, self.gamma)

    def _shared_factor(self, total: float) -> float:
        """Return what a clip of the whole gradient multiplies by."""
        return min(1.0, self._options.fallback / total) if total > 0.0 else 1.0

    def limits(self, sets: Sequence[Rows], norms: WideArray, total: float) -> WideArray:
        """See `Tracker.limits`."""
        places = self.sets.places(sets)
        shared = self._shared_factor(total)
        early = np.minimum(norms, LARGEST) * shared if shared < 1.0 else np.full(len(norms), np.inf)
        return np.where(self.counts[places] >= self._options.warmup, self._options.adagc * self.gamma[places], early)
