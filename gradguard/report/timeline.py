"""The rows of a run that count: of a step that was taken twice (after a resume) the last time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


Integers = npt.NDArray[np.int64]
FARTHEST = 2**62


class Timeline(NamedTuple):
    """Rows of a record in the order of their steps.

    Args:
        rows: (S,) of the record, ascending.
        steps: (S,) of these rows, strictly ascending.
    """

    rows: Integers
    steps: Integers

    def places(self, steps: Iterable[int]) -> Integers:
        """Return the places of those of some steps that are on the timeline, ascending, each once.

        Example:
            >>> timeline(np.array([3, 4, 5])).places([5, 9, 3, 10**30]).tolist()
            [0, 2]
        """
        wanted = np.unique(np.array([min(max(step, -FARTHEST), FARTHEST) for step in steps], dtype=np.int64))
        places = np.searchsorted(self.steps, wanted)
        is_there = places < len(self.steps)
        is_there[is_there] = self.steps[places[is_there]] == wanted[is_there]
        return places[is_there].astype(np.int64)


def timeline(steps: npt.NDArray[np.int64]) -> Timeline:
    """Return the rows after which no earlier or equal step comes.

    Args:
        steps: (N,) as they were recorded.

    Example:
        >>> timeline(np.array([0, 1, 2, 1, 2, 3])).rows.tolist()
        [0, 3, 4, 5]
    """
    if not len(steps):
        return Timeline(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
    is_last = np.append(steps[:-1] < lowest_after[1:], True)
    rows = np.flatnonzero(is_last).astype(np.int64)
    return Timeline(rows, steps[rows])
