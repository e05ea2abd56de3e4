"""Limits read off the rolling window of norms: a multiple of its median, or one of its percentiles (AutoClip)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from gradguard.evidence.running import NormWindow
from gradguard.limits.norm_sets import Rows, WideArray
from gradguard.limits.tracked import Limit


FEWEST = 5  # norms that a limit must be made of


def history(window: NormWindow, rows: Rows) -> WideArray:
    """Return the accepted norms of a set of parameters in a window, in no particular order.

    Args:
        window: of the P + 1 levels.
        rows: counted as one vector; the step is left out at which none of them has a gradient.
    """
    if rows is None or len(rows) == 1:
        values: WideArray = window.ring[: window.steps, 0 if rows is None else rows[0] + 1].astype(np.float64)
        return np.asarray(values[values == values])
    members = window.ring[: window.steps][:, np.array(rows, dtype=np.intp) + 1].astype(np.float64)
    norms: WideArray = np.sqrt(np.nansum(np.square(members), axis=1))
    return norms[norms > 0.0]


class MedianTimes(Limit):
    """A limit that follows the run: a multiple of the rolling median norm.

    Args:
        median_times: multiple, > 0.
        window: steps of the rolling median, >= 2 and at most 100,000.
        fallback: limit while there is no median yet, and for findings that were not made against one (a norm that
            overflowed, an update larger than the weights), > 0. With SGD the limit is then rather that whose update is
            5 % of the weights' norm, which knows the scale of the model.
    """

    median_times: float = Field(gt=0)
    window: int = Field(default=50, ge=2, le=100_000)
    fallback: float = Field(default=1.0, gt=0)

    def of(self, window: NormWindow, sets: Sequence[Rows]) -> WideArray:
        """Return (n,) limits for sets of parameters, NaN where fewer than 5 norms are known."""
        medians = np.full(len(sets), np.nan)
        places = np.array([_column(rows) for rows in sets])
        is_kept = places >= 0
        medians[is_kept] = np.where(window.counts[places[is_kept]] >= FEWEST, window.median[places[is_kept]], np.nan)
        for place in np.flatnonzero(~is_kept).tolist():
            norms = history(window, sets[place])
            if len(norms) >= FEWEST:
                medians[place] = np.percentile(norms, 50, method="lower")
        return self.median_times * medians


class Percentile(Limit):
    """A percentile of the last norms (AutoClip, over a window instead of the whole history).

    Args:
        percentile: in (0, 100]; with 90 about one step in ten is clipped.
        window: steps, >= 2 and at most 100,000.
        fallback: limit while fewer than 5 norms are known, and for findings that were not made against the run's own
            level, > 0; see `MedianTimes`.

    Example:
        >>> window = NormWindow(1, 10)
        >>> for norm in (1.0, 2.0, 3.0, 4.0, 100.0):
        ...     window.push(np.array([norm], dtype=np.float32))
        >>> Percentile(percentile=75).of(window, [None])
        array([4.])
    """

    percentile: float = Field(gt=0, le=100)
    window: int = Field(default=200, ge=2, le=100_000)
    fallback: float = Field(default=1.0, gt=0)

    def of(self, window: NormWindow, sets: Sequence[Rows]) -> WideArray:
        """Return (n,) limits for sets of parameters, NaN where fewer than 5 norms are known."""
        places = np.array([_column(rows) for rows in sets])
        if not window.gaps and window.steps >= FEWEST and (places >= 0).all():
            columns = window.ring[: window.steps, places].astype(np.float64)
            return np.asarray(np.percentile(columns, self.percentile, axis=0))
        found = [history(window, rows) for rows in sets]
        return np.array([np.percentile(norms, self.percentile) if len(norms) >= FEWEST else np.nan for norms in found])


def _column(rows: Rows) -> int:
    """Return the column of a window that is kept for a set, -1 when there is none."""
    return 0 if rows is None else rows[0] + 1 if len(rows) == 1 else -1
