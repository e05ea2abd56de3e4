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

from gradguard.stats import FloatArray


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

    Attributes:
        median: (R,) float32, lower median of each row's accepted values; NaN while there are none.
        steps: steps pushed so far, counted up to `size`.
        counts: (R,) int, accepted values in each row's window.
    """

    def __init__(self, num_rows: int, size: int) -> None:
        self.size = size
        self.ring: FloatArray = np.full((num_rows, size), np.nan, dtype=np.float32)
        self.median: FloatArray = np.full(num_rows, np.nan, dtype=np.float32)
        self.counts = np.zeros(num_rows, dtype=np.int64)
        self.steps = 0
        self.position = 0
        self.gaps = 0  # steps for which the window may hold slots without a value; 0 means that it is full of values

    def push(self, values: FloatArray) -> None:
        """Take in one step's values, (R,) float32."""
        if self.steps < self.size:
            self.steps += 1
        filled = self.ring[:, : self.steps]
        accepted = (values > 0.0) & (values < np.inf)
        if np.count_nonzero(accepted) == len(values):
            self.ring[:, self.position] = values
            self.gaps = max(0, self.gaps - 1)
        else:
            self.ring[:, self.position] = np.where(accepted, values, np.nan)
            self.gaps = self.size
        self.position = (self.position + 1) % self.size
        ordered = np.sort(filled, axis=1)
        if self.gaps:
            self.counts = np.count_nonzero(ordered == ordered, axis=1)
            middle = np.maximum(self.counts - 1, 0) // 2
            self.median = np.take_along_axis(ordered, middle[:, None], axis=1)[:, 0]
        else:
            self.counts[:] = self.steps
            self.median = ordered[:, (self.steps - 1) // 2]

    def log_deviation(self, row: int) -> float:
        """Return 1.4826 MAD of the logarithms in one row's window, a robust standard deviation of ln(value)."""
        values = self.ring[row, : self.steps]
        logs = np.log(values[np.isfinite(values)].astype(np.float64))
        if logs.size == 0:
            return math.nan
        return float(MAD_TO_SIGMA * np.median(np.abs(logs - np.median(logs))))

    def upper(self, row: int) -> float:
        """Return the largest accepted value in one row's window but for outliers, NaN when there is none."""
        values = self.ring[row, : self.steps]
        return largest_but_outliers(sorted(values[np.isfinite(values)].tolist()))

    def maximum(self, row: int) -> float:
        """Return the largest accepted value in one row's window, NaN when there is none."""
        values = self.ring[row, : self.steps]
        values = values[np.isfinite(values)]
        return float(values.max()) if values.size else math.nan

    def forget(self) -> None:
        """Empty the window."""
        self.__init__(self.ring.shape[0], self.size)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the window."""
        return {
            "ring": self.ring.copy(),
            "median": self.median.copy(),
            "counts": self.counts.copy(),
            "steps": self.steps,
            "position": self.position,
            "gaps": self.gaps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a copied window back."""
        self.ring = np.array(state["ring"], dtype=np.float32)
        self.median = np.array(state["median"], dtype=np.float32)
        self.counts = np.array(state["counts"], dtype=np.int64)
        self.steps = int(state["steps"])
        self.position = int(state["position"])
        self.gaps = int(state["gaps"])


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
