"""Sums, extremes and counts of many small arrays in one walk: they are laid end to end and reduced by segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


Float64Array = npt.NDArray[np.float64]


class FlatMoments(NamedTuple):
    """What R arrays come to.

    Args:
        head: (R, 3) float64: sum, sum of squared deviations from the mean, entries that are not 0.
        extent: (R, 3) float64: norm, largest, smallest.
        counts: (R, 256) float64, entries by the uppermost byte of their float32, shifted by 128.
    """

    head: Float64Array
    extent: Float64Array
    counts: Float64Array


def flat_moments(arrays: Sequence[npt.NDArray[np.float32]], factor: float) -> FlatMoments:
    """Return the moments of R arrays, (n,) float32 each and none of them empty, times `factor`; summed in float64.

    Example:
        >>> found = flat_moments([np.array([3.0, 0.0, 4.0], dtype=np.float32)], 1.0)
        >>> found.extent.tolist(), found.head[:, ::2].tolist()
        ([[5.0, 4.0, 0.0]], [[7.0, 2.0]])
    """
    lengths = np.array([len(array) for array in arrays])
    starts = np.cumsum(lengths) - lengths
    flat = np.concatenate(arrays)
    with np.errstate(all="ignore"):  # NaN and infinity are welcome
        if factor != 1.0:
            flat *= np.float32(factor)
        wide = flat.astype(np.float64)
        total = np.add.reduceat(wide, starts)
        norm = np.sqrt(np.add.reduceat(np.square(wide), starts))
        wide -= np.repeat(total / lengths, lengths)
        deviation = np.add.reduceat(np.square(wide, out=wide), starts)
    num_nonzero = np.add.reduceat(flat != 0, starts, dtype=np.int64)
    keys = (flat.view(np.int32) >> 24) + np.repeat(np.arange(128, 256 * len(arrays), 256), lengths)
    counts = np.bincount(keys, minlength=256 * len(arrays)).reshape(-1, 256).astype(np.float64)
    extent = [norm, np.maximum.reduceat(flat, starts), np.minimum.reduceat(flat, starts)]
    return FlatMoments(
        np.stack([total, deviation, num_nonzero], axis=1, dtype=np.float64),
        np.stack(extent, axis=1, dtype=np.float64),
        counts,
    )
