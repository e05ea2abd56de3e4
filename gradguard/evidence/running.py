"""Rolling statistics over the last W accepted steps: robust, never poisoned by a NaN, never locked by a level change.

Only finite observations enter, and they enter as measured, before any remedy: a median over raw values ignores up to
half a window of outliers, so one spike neither hides the next nor moves the limit, and after a lasting change of level
the median follows within W/2 steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.evidence.stats import FloatArray


FLOAT32_MAX = np.finfo(np.float32).max
SORT_EVERY = 20  # pushes, at most
OUTLIERS = 3  # that do not hide the next one: as many as there may be before a rule climbs its ladder
MAD_TO_SIGMA = 1.4826  # makes the median absolute deviation agree with the standard deviation of a normal distribution


def largest_but_outliers(ordered: Sequence[float]) -> float:
    """Return the largest of ascending values but for three outliers (fewer in a short window), NaN of nothing.

    What comes back more often is no outlier but a habit: a second task, say, or a new level.

    Example:
        >>> largest_but_outliers([1.0] * 20 + [9.0, 9.0, 9.0])
        1.0
        >>> largest_but_outliers([1.0] * 20 + [9.0, 9.0, 9.0, 9.0])
        9.0
    """
    return ordered[-1 - min(OUTLIERS, len(ordered) // 5)] if ordered else math.nan


class NormWindow:
    """Medians of the last `size` accepted values of R rows of positive numbers (gradient norms).

    A row accepts a value that is finite and > 0; other values leave its window as it is, but for the slot of this step.

    Args:
        num_rows: R.
        size: W, steps, >= 2.

    Medians are only sorted out when someone asks for them, or when so many steps have come that the bound of
    `is_surely_below` no longer holds: on a healthy step one row of the ring is all that is written.

    Attributes:
        ring: (W, R) float32, the values; NaN where none was accepted.
        steps: steps pushed so far, counted up to `size`.
    """

    def __init__(self, num_rows: int, size: int) -> None:
        self.size = size
        self.ring: FloatArray = np.full((size, num_rows), np.nan, dtype=np.float32)
        self.steps = 0
        self.position = 0
        self.gaps = 0  # steps for which the window may hold slots without a value; 0 means that it is full of values
        self._median: FloatArray = np.full(num_rows, np.nan, dtype=np.float32)
        self._counts = np.zeros(num_rows, dtype=np.int64)
        self._floor: FloatArray | None = None  # below every median for as long as `_left` > 0
        self._left = 0  # pushes until the medians must be sorted out again
        self._is_sorted = True
        self._limits: dict[float, FloatArray] = {}

    @property
    def median(self) -> FloatArray:
        """(R,) float32, lower median of each row's accepted values; NaN while there are none."""
        self._sort()
        return self._median

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """(R,) accepted values in each row's window."""
        self._sort()
        return self._counts

    def push(self, values: FloatArray, is_plain: bool = False) -> None:
        """Take in one step's values, (R,) float32; `is_plain` says that all of them are known to be accepted."""
        if self.steps < self.size:
            self.steps += 1
        accepted = None if is_plain else (values > 0.0) & (values < np.inf)
        if accepted is None or np.count_nonzero(accepted) == len(values):
            self.ring[self.position] = values
            self.gaps = max(0, self.gaps - 1)
        else:
            self.ring[self.position] = np.where(accepted, values, np.nan)
            self.gaps = self.size
        self.position = (self.position + 1) % self.size
        self._is_sorted = False
        self._left -= 1
        if self._left <= 0 or self.gaps:
            self._sort()

    def _sort(self) -> None:
        if self._is_sorted:
            return
        self._is_sorted = True
        self._limits = {}
        ordered = np.sort(self.ring[: self.steps].T, axis=1)
        middle = (self.steps - 1) // 2
        if self.gaps:
            self._counts = np.count_nonzero(ordered == ordered, axis=1)
            middles = np.maximum(self._counts - 1, 0) // 2
            self._median = np.take_along_axis(ordered, middles[:, None], axis=1)[:, 0]
            self._floor = None
        else:
            self._counts = np.full(len(ordered), self.steps)
            self._median = ordered[:, middle]
            self._left = min(SORT_EVERY, middle)
            self._floor = ordered[:, middle - self._left]

    def surely_below(self, ratio: float, num_pushes: int = 0) -> tuple[FloatArray, int] | None:
        """Return ((R,) float32, below `ratio` times each row's median; for how many pushes), None if unknown.

        Each push moves a median by one place among the sorted values at most, so that k places below the last sorted
        median there is a bound for the next k pushes.

        Args:
            ratio: > 0.
            num_pushes: for how many pushes it should hold; if the present bound does not, another is sorted out.
        """
        if self._left < num_pushes:
            self._sort()
        if self._floor is None:
            return None
        limits = self._limits.get(ratio)
        if limits is None:
            ratio32 = np.float32(ratio * (1.0 - 1e-6))
            limits = self._limits[ratio] = np.minimum(self._floor, FLOAT32_MAX / ratio32) * ratio32
        return limits, self._left

    def is_surely_below(self, values: FloatArray, ratio: float) -> bool:
        """Return True only if no value is above `ratio` times its row's median; False if that is not known cheaply."""
        bound = self.surely_below(ratio)
        return bound is not None and not np.count_nonzero(values > bound[0])

    def log_deviation(self, row: int) -> float:
        """Return 1.4826 MAD of the logarithms in one row's window, a robust standard deviation of ln(value)."""
        values = self.ring[: self.steps, row]
        logs = np.log(values[np.isfinite(values)].astype(np.float64))
        if logs.size == 0:
            return math.nan
        return float(MAD_TO_SIGMA * np.median(np.abs(logs - np.median(logs))))

    def upper(self, row: int) -> float:
        """Return the largest accepted value in one row's window but for outliers, NaN when there is none."""
        values = self.ring[: self.steps, row]
        return largest_but_outliers(sorted(values[np.isfinite(values)].tolist()))

    def maximum(self, row: int) -> float:
        """Return the largest accepted value in one row's window, NaN when there is none."""
        values = self.ring[: self.steps, row]
        values = values[np.isfinite(values)]
        return float(values.max()) if values.size else math.nan

    def forget(self) -> None:
        """Empty the window."""
        self.__init__(self.ring.shape[1], self.size)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the window."""
        return {"ring": self.ring.copy(), "steps": self.steps, "position": self.position, "gaps": self.gaps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a copied window back."""
        self.__init__(self.ring.shape[1], self.size)  # type: ignore[misc]
        self.ring = np.array(state["ring"], dtype=np.float32)
        self.steps = int(state["steps"])
        self.position = int(state["position"])
        self.gaps = int(state["gaps"])
        self._is_sorted = not self.steps


class LossWindow:
    """Order statistics of the last `size` finite losses, of any sign.

    Args:
        size: W, steps, >= 2.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: deque[float] = deque(maxlen=size)
        self.ordered: list[float] = []

    def __len__(self) -> int:
        return len(self.values)

    def push(self, loss: float) -> None:
        """Take in one loss; a NaN or infinite one is ignored."""
        if not math.isfinite(loss):
            return
        if len(self.values) == self.size:
            del self.ordered[bisect_left(self.ordered, self.values[0])]
        self.values.append(loss)
        insort(self.ordered, loss)

    @property
    def median(self) -> float:
        """Lower median, NaN while the window is empty."""
        return self.ordered[(len(self.ordered) - 1) // 2] if self.ordered else math.nan

    @property
    def maximum(self) -> float:
        """Largest loss in the window, NaN while it is empty."""
        return self.ordered[-1] if self.ordered else math.nan

    @property
    def upper(self) -> float:
        """Largest loss but for outliers, NaN while the window is empty."""
        return largest_but_outliers(self.ordered)

    def surely_usual(self, num_pushes: int) -> tuple[float, float]:
        """Return what `median` and `upper` do not fall below during the next pushes; NaN where that is not known.

        A push moves either by one place among the sorted losses at most.
        """
        middle, outer = (len(self.ordered) - 1) // 2 - num_pushes, len(self.ordered) - 1 - OUTLIERS - num_pushes
        return (
            self.ordered[middle] if middle >= 0 else math.nan,
            self.ordered[outer] if outer >= 0 else math.nan,
        )

    @property
    def minimum(self) -> float:
        """Smallest loss in the window, NaN while it is empty."""
        return self.ordered[0] if self.ordered else math.nan

    def deviation(self, is_log: bool) -> float:
        """Return 1.4826 MAD of the losses, or of their logarithms when all are positive."""
        if not self.values:
            return math.nan
        values = np.array(self.values, dtype=np.float64)
        if is_log:
            values = np.log(values)
        return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values))))

    def forget(self) -> None:
        """Empty the window."""
        self.values.clear()
        self.ordered.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the window."""
        return {"values": list(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a copied window back."""
        self.values = deque((float(v) for v in state["values"]), maxlen=self.size)
        self.ordered = sorted(self.values)
