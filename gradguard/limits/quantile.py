"""A quantile of all norms so far, tracked by one number: it goes up a little when exceeded, down a little when not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.limits.norm_sets import NormSets, Rows, WideArray
from gradguard.limits.tracked import BoolArray, TrackedLimit, Tracker


NUM_FIRST = 5  # norms whose median is the first limit


def next_quantile(limit: WideArray, norms: WideArray, quantile: float, rate: float) -> WideArray:
    """Return the tracked quantile after one more norm: limit * exp(-rate * ([norm <= limit] - quantile)).

    In the long run the share `quantile` of all norms is at or below it. It grows by at most exp(rate * quantile) and
    falls by at most exp(-rate * (1 - quantile)) a step, whatever the norm, so that an outlier moves it no further than
    any other norm, and after a level rises by a factor f it has followed within ln(f) / (rate * quantile) steps.

    Args:
        limit: > 0.
        norms: of this step, finite.
        quantile: in (0, 1).
        rate: > 0.

    Source: Andrew et al. 2019, "Differentially Private Learning with Adaptive Clipping", without the noise.

    Example:
        >>> float(next_quantile(np.array(1.0), np.array(5.0), 0.9, 0.1).round(4))
        1.0942
    """
    return np.asarray(limit * np.exp(rate * (quantile - (norms <= limit))))


class Quantile(TrackedLimit):
    """A quantile of the norms, tracked without a history.

    Args:
        quantile: share of the norms that are within the limit, in (0, 1).
        rate: step size on a logarithmic scale, in (0, 1]; a larger one follows faster and wavers more.
        fallback: limit for the first 5 norms, and for findings that were not made against the run's own level, > 0.
    """

    quantile: float = Field(gt=0, lt=1)
    rate: float = Field(default=0.05, gt=0, le=1)
    fallback: float = Field(default=1.0, gt=0)

    def track(self, sets: NormSets) -> QuantileTracker:
        """See `TrackedLimit.track`."""
        return QuantileTracker(self, sets)


class QuantileTracker(Tracker):
    """The tracked quantiles; see `Tracker`.

    Attributes:
        first: (5, n) the first norms.
        counts: (n,) of them so far, up to 5.
        limit: (n,) the quantiles, NaN before there are 5 norms.
    """

    state = ("first", "counts", "limit")

    def __init__(self, options: Quantile, sets: NormSets) -> None:
        self._options = options
        super().__init__(sets)

    def forget(self) -> None:
        """See `Tracker.forget`."""
        self.first = np.full((NUM_FIRST, len(self.sets)), np.nan)
        self.counts: npt.NDArray[np.int64] = np.zeros(len(self.sets), dtype=np.int64)
        self.limit = np.full(len(self.sets), np.nan)

    def learn(self, norms: WideArray, accepted: BoolArray, total: float) -> None:
        """See `Tracker.learn`."""
        tracked = accepted & (self.counts == NUM_FIRST)
        after = next_quantile(self.limit, norms, self._options.quantile, self._options.rate)
        self.limit = np.where(tracked, after, self.limit)
        early = np.flatnonzero(accepted & (self.counts < NUM_FIRST))
        if early.size:
            self.first[self.counts[early], early] = norms[early]
            self.counts[early] += 1
            started = early[self.counts[early] == NUM_FIRST]
            self.limit[started] = np.median(self.first[:, started], axis=0)

    def limits(self, sets: Sequence[Rows], norms: WideArray, total: float) -> WideArray:
        """See `Tracker.limits`."""
        return self.limit[self.sets.places(sets)]
