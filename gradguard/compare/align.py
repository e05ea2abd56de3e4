"""Which row of one run belongs to which row of another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Alignment:
    """The steps that two runs have in common.

    Attributes:
        steps: (C,) ascending.
        rows_a: (C,) where they are in the first run; of a step that was taken again after a resume, the last time.
        rows_b: (C,) where they are in the second.
        only_a: (A,) steps that the first run alone has.
        only_b: (B,) steps that the second run alone has.
    """

    steps: npt.NDArray[np.int64]
    rows_a: npt.NDArray[np.int64]
    rows_b: npt.NDArray[np.int64]
    only_a: npt.NDArray[np.int64]
    only_b: npt.NDArray[np.int64]


def align(steps_a: npt.NDArray[np.int64], steps_b: npt.NDArray[np.int64]) -> Alignment:
    """Return which steps two runs have in common, and where.

    Args:
        steps_a: (S,) steps of the first run as recorded; they fall back where it was resumed.
        steps_b: (T,) of the second.

    Example:
        >>> align(np.array([0, 1, 2, 1, 2, 3]), np.array([1, 2])).rows_a
        array([3, 4])
    """
    own_a, last_a = _last_rows(steps_a)
    own_b, last_b = _last_rows(steps_b)
    steps, at_a, at_b = np.intersect1d(own_a, own_b, assume_unique=True, return_indices=True)
    return Alignment(
        steps, last_a[at_a], last_b[at_b], np.setdiff1d(own_a, own_b, True), np.setdiff1d(own_b, own_a, True)
    )


def _last_rows(steps: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    own, from_end = np.unique(steps[::-1], return_index=True)
    return own, len(steps) - 1 - from_end
