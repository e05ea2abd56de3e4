"""Which rows of a long run are drawn: all extremes, whatever is asked for, and no more than the screen can show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


Rows = npt.NDArray[np.int64]


def kept_rows(columns: Sequence[npt.NDArray[np.floating]], must: npt.ArrayLike, num_buckets: int) -> Rows:
    """Return the rows to draw: of every bucket each column's largest, smallest and first non-finite value.

    A line through these rows covers the same pixels as one through all, where a bucket is no wider than a pixel.

    Args:
        columns: (S,) each.
        must: further rows that are kept, in [0, S).
        num_buckets: into how many equal parts the rows are cut, >= 1; a run of no more than four times as many rows is
            kept whole.

    Returns:
        Rows, ascending, each once; the first and the last one are among them.

    Example:
        >>> spiky = np.zeros(1000)
        >>> spiky[[17, 500]] = 9.0, np.nan
        >>> kept_rows([spiky], [123], num_buckets=2).tolist()
        [0, 17, 123, 500, 501, 999]
    """
    num_rows = len(columns[0]) if columns else 0
    if num_rows <= 4 * num_buckets:
        return np.arange(num_rows, dtype=np.int64)
    kept = [np.asarray(must, dtype=np.int64).reshape(-1), np.array([0, num_rows - 1], dtype=np.int64)]
    for column in columns:
        kept += _extremes(column, -(-num_rows // num_buckets))
    return np.unique(np.concatenate(kept))


def rows_near(centers: npt.ArrayLike, reach: int, num_rows: int, limit: int) -> Rows:
    """Return the rows no further than `reach` from a center, for as many of the first centers as `limit` rows allow.

    Example:
        >>> rows_near([5, 100], reach=1, num_rows=101, limit=10).tolist()
        [4, 5, 6, 99, 100]
    """
    first = np.asarray(centers, dtype=np.int64).reshape(-1)[: limit // (2 * reach + 1)]
    near = np.unique(first[:, None] + np.arange(-reach, reach + 1))
    return near[(near >= 0) & (near < num_rows)]


def _extremes(column: npt.NDArray[np.floating], width: int) -> list[Rows]:
    num_rows = len(column)
    num_buckets = -(-num_rows // width)
    filled = np.full(num_buckets * width, np.nan)
    filled[:num_rows] = column
    table = filled.reshape(num_buckets, width)
    finite = np.isfinite(table)
    starts = np.arange(num_buckets, dtype=np.int64) * width
    has_values = finite.any(axis=1)
    highest = starts + np.argmax(np.where(finite, table, -np.inf), axis=1)
    lowest = starts + np.argmin(np.where(finite, table, np.inf), axis=1)
    first_odd = starts + np.argmin(finite, axis=1)
    has_odd = ~finite.all(axis=1) & (first_odd < num_rows)  # the last bucket is filled up with NaN
    return [highest[has_values], lowest[has_values], first_odd[has_odd]]
