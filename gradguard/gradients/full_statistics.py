"""Mean, standard deviation, extremes, share of zeros, norm and histogram of gradients, from the columns of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gradguard.gradients.columns import (
    BINS,
    DEVIATION,
    MAX,
    MIN,
    NONZERO,
    NORM,
    SUM,
    DeviceColumns,
    entries_of,
    gradient_columns,
)
from gradguard.gradients.magnitude_bins import NUM_BINS, NUM_SIDE
from gradguard.gradients.wide_moments import wide_moments


Float64Array = npt.NDArray[np.float64]
SMALLEST_SQUARABLE = 1e-15  # squares of smaller entries begin to drop out of float32
SMALLEST_SPREAD = 0.03  # share of the mean below which a difference of squares in float32 is off by more than 0.1 %


class GradientStatistics(NamedTuple):
    """Statistics of every parameter's gradient, as arrays over P parameters.

    Taken from every entry, all are exact up to rounding, but for the histogram of a tensor of more than 65,536 entries,
    which is that of a sample of k = 8,192. Taken from a sample of k entries, `norm`, `max` and `min` still are exact,
    and so is everything about tensors of at most k entries; of the others, with s the standard deviation, q a share and
    r the kurtosis E[(x - mean)^4] / s^4 of the entries, the standard error is at most

    * of `mean`: s / sqrt(k);
    * of `zero_ratio` and of each share of `histogram`: sqrt(q (1 - q) / k);
    * of `std`, where abs(mean) < s: sqrt(mean^2 / k + 3 s^2 / 4k^2), since std^2 = norm^2 / n - mean^2 with the exact
      norm; elsewhere, where that difference would cancel, it is the spread of the sample, with s sqrt((r - 1) / 4k).

    Of a gradient with a NaN or infinite entry, mean, std and histogram are NaN, max, min and norm are NaN or infinite
    as its entries are, and the zero ratio is that of all entries that were looked at.

    Args:
        names: P fully qualified names.
        mean, std: (P,) float64 of the entries; std divides by their number. NaN of no entries, as are the next three.
        max, min: (P,) float64.
        zero_ratio: (P,) float64, share of entries that are exactly 0, in [0, 1].
        norm: (P,) float64 L2 norms.
        histogram: (P, 25) float64, share of entries in each bin of `bin_edges(max, min)`.
    """

    names: list[str]
    mean: Float64Array
    std: Float64Array
    max: Float64Array
    min: Float64Array
    zero_ratio: Float64Array
    norm: Float64Array
    histogram: Float64Array


def measure(
    names: list[str], grads: Sequence[Tensor | None], step: int, sample: int | None, factor: float = 1.0
) -> GradientStatistics:
    """Return the statistics of P gradients times `factor`, one host transfer a device; those of absent ones are NaN."""
    parts = gradient_columns(grads, step, sample, factor)
    found = finish(names, [(part, part.values.cpu().numpy()) for part in parts])
    refine(found, grads, sample, factor)
    return found


def finish(
    names: list[str], parts: Sequence[tuple[DeviceColumns, Float64Array]], norms: Float64Array | None = None
) -> GradientStatistics:
    """Return the statistics that columns stand for; norms beyond the range of float32's squares are 0 or infinite here.

    Args:
        names: P names, one for each of the gradients that were handed to `gradient_columns`.
        parts: what it returned, each with its `values` on the host.
        norms: (P,) of the gradients times their factor, if `gradient_columns` was told that they are known.
    """
    mean, std, largest, smallest, zero_ratio, norm = np.full((6, len(names)), np.nan)
    histogram = np.full((len(names), NUM_BINS), np.nan)
    found = GradientStatistics(names, mean, std, largest, smallest, zero_ratio, norm, histogram)
    for part, values in parts:
        if norms is not None:
            values[:, NORM] = np.where(np.isnan(values[:, NORM]), norms[part.rows], values[:, NORM])
        num_entries, num_stored, num_used = np.array(part[2:], dtype=np.float64)
        with np.errstate(all="ignore"):
            _fill(found, part.rows, values, num_stored / num_entries, num_entries, num_used)
    return found


def _fill(
    found: GradientStatistics,
    rows: list[int],
    values: Float64Array,
    held: Float64Array,
    num_entries: Float64Array,
    num_used: Float64Array,
) -> None:
    """Write one device's rows; `held` is the share of entries that are not a sparse gradient's implicit zeros."""
    largest, smallest = values[:, MAX], values[:, MIN]
    is_bad = ~np.isfinite(largest) | ~np.isfinite(smallest)
    stored_mean = np.where(is_bad, np.nan, values[:, SUM] / num_used)
    mean = stored_mean * held
    variance = np.square(values[:, NORM]) / num_entries - np.square(mean)
    of_used = held * (values[:, DEVIATION] / num_used + (1.0 - held) * np.square(stored_mean))
    has_all = num_used == held * num_entries
    variance = np.where((has_all | ~(variance > np.square(mean))) & ~np.isnan(of_used), of_used, variance)
    shares = values[:, BINS:] * (held / num_used)[:, None]
    shares[:, NUM_SIDE] += 1.0 - held
    shares[is_bad] = np.nan
    found.mean[rows] = mean
    found.std[rows] = np.sqrt(np.maximum(variance, 0.0))
    found.max[rows] = np.where(held < 1, np.maximum(largest, 0.0), largest)
    found.min[rows] = np.where(held < 1, np.minimum(smallest, 0.0), smallest)
    found.zero_ratio[rows] = 1.0 - held * values[:, NONZERO] / num_used
    found.norm[rows] = values[:, NORM]
    found.histogram[rows] = shares


def refine(found: GradientStatistics, grads: Sequence[Tensor | None], sample: int | None, factor: float = 1.0) -> None:
    """Compute in float64 what float32 could not hold: tiny or huge entries, a spread far below the mean."""
    peak = np.maximum(np.abs(found.max), np.abs(found.min))
    is_lost = np.isfinite(peak) & ((peak < SMALLEST_SQUARABLE) & (peak > 0) | ~np.isfinite(found.norm + found.mean))
    is_narrow = found.std < SMALLEST_SPREAD * np.abs(found.mean)
    for row, grad in enumerate(grads):
        if grad is None:
            continue
        if is_lost[row] or (is_narrow[row] and (sample is None or grad.numel() <= sample)):
            entries, num_entries = entries_of(grad)
            mean, std, norm = wide_moments(entries, num_entries)
            found.mean[row], found.std[row], found.norm[row] = mean * factor, std * factor, norm * factor
        elif not grad.numel():
            found.norm[row] = 0.0
