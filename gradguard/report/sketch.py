"""Five numbers for each stretch of steps: what is left of a statistic of every layer when the run is long."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
FINITE_MAX = np.uint32(0x7F7F0000)  # bits of the largest finite number that keeps 8 bits of its mantissa
FloatArray = npt.NDArray[np.float32]


class Sketch(NamedTuple):
    """Smallest value, quartiles and largest value of P series in each of B stretches.

    Args:
        first: (B,) step at which each stretch begins.
        last: (B,) its last step.
        values: (Q, B, P) float32: by `QUANTILES`, Q = 5; or Q = 1 when no stretch holds more than one row. NaN where
            there is no value, infinity for one that is not finite: it counts as the largest.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    values: FloatArray


def sketch(
    steps: npt.NDArray[np.int64],
    read: Callable[[int, int], npt.NDArray[np.floating]],
    num_series: int,
    num_buckets: int,
) -> Sketch:
    """Return the five numbers of each stretch; one stretch is read at a time.

    Args:
        steps: (S,) of the rows.
        read: called with (start, stop), returns these rows, (stop - start, P); NaN where there is no value.
        num_series: P.
        num_buckets: stretches at most, >= 1.

    Example:
        >>> rows = np.array([[1.0], [5.0], [2.0], [4.0]])
        >>> sketch(np.arange(4), lambda start, stop: rows[start:stop], 1, 2).values[:, :, 0].tolist()
        [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [5.0, 4.0], [5.0, 4.0]]
    """
    num_rows = len(steps)
    num_buckets = min(num_buckets, num_rows)
    edges = np.linspace(0, num_rows, num_buckets + 1).astype(np.int64) if num_buckets else np.zeros(1, dtype=np.int64)
    is_whole = num_buckets == num_rows
    values = np.full((1 if is_whole else len(QUANTILES), num_buckets, num_series), np.nan, dtype=np.float32)
    if is_whole:
        values[0] = _ranked(read(0, num_rows)) if num_rows else values[0]
    else:
        for bucket in range(num_buckets):
            values[:, bucket] = _five(read(int(edges[bucket]), int(edges[bucket + 1])))
    return Sketch(steps[edges[:-1]], steps[edges[1:] - 1], values)


def pack(values: npt.NDArray[np.floating]) -> str:
    """Return numbers as base64 text, two bytes each: the upper half of a little-endian float32, rounded (0.4 %).

    What is finite stays finite, and NaN and infinity stay what they are.

    Example:
        >>> pack(np.array([1.0, -2.0]))
        'gD8AwA=='
    """
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    sign, size = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
    rounded = np.minimum(size + np.uint32(0x7FFF) + ((size >> np.uint32(16)) & np.uint32(1)), FINITE_MAX)
    kept = np.where(np.isfinite(values), rounded, size) | sign
    return base64.b64encode((kept >> np.uint32(16)).astype("<u2").tobytes()).decode("ascii")


def told(drawn: Sketch) -> dict[str, Any]:
    """Return a sketch as the page takes it: {"first", "last": steps, "shape": (Q, B, P), "data": packed}."""
    return {
        "first": drawn.first.tolist(),
        "last": drawn.last.tolist(),
        "shape": drawn.values.shape,
        "data": pack(drawn.values),
    }


def _ranked(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    return np.where(np.isinf(rows), np.inf, rows)


def _five(rows: npt.NDArray[np.floating]) -> FloatArray:
    ordered = np.sort(np.ascontiguousarray(_ranked(rows).T, dtype=np.float32), axis=1)  # NaN last
    counts = np.count_nonzero(ordered == ordered, axis=1)
    places = np.rint(np.array(QUANTILES)[:, None] * np.maximum(counts - 1, 0)).astype(np.int64)
    five: FloatArray = np.take_along_axis(ordered, places.T, axis=1).T
    five[:, counts == 0] = np.nan
    return five
