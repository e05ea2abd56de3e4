"""Sets of parameters whose gradients count as one vector: all of them, a param group, a rule's, or a single one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from gradguard.evidence.stats import ABSENT, FloatArray, ParameterTable, StepStats


Rows = tuple[int, ...] | None  # parameters, None for all
WideArray = npt.NDArray[np.float64]


def divide(rows: Rows, table: ParameterTable, scope: Literal["global", "group", "per_parameter"]) -> list[Rows]:
    """Return the sets that a scope makes of some parameters; none of them is empty.

    Example:
        >>> table = ParameterTable(["a", "b", "c"], [(1,)] * 3, ["float32"] * 3, [0, 1, 1])
        >>> divide(None, table, "group"), divide((0, 1), table, "per_parameter"), divide(None, table, "global")
        ([(0,), (1, 2)], [(0,), (1,)], [None])
    """
    if scope == "global":
        return [rows] if rows is None or rows else []
    members = range(len(table)) if rows is None else rows
    if scope == "per_parameter":
        return [(row,) for row in members]
    groups: dict[int, tuple[int, ...]] = {}
    for row in members:
        groups[table.groups[row]] = (*groups.get(table.groups[row], ()), row)
    return list(groups.values())


def set_norms(stats: StepStats, sets: Sequence[Rows]) -> WideArray:
    """Return (n,) L2 norms of sets at this step, exact beyond float32; not above 0 where no gradient is there."""
    return np.array([_set_norm(stats, rows) for rows in sets], dtype=np.float64)


def _set_norm(stats: StepStats, rows: Rows) -> float:
    if rows is None:
        return stats.global_norm
    if len(rows) == 1:
        return stats.norm(rows[0])
    return float(np.hypot.reduce([norm for row in rows if (norm := stats.norm(row)) != ABSENT], initial=0.0))


class NormSets:
    """Reads the norms of fixed sets from the levels of a step.

    Args:
        sets: distinct, none empty.
    """

    def __init__(self, sets: Sequence[Rows]) -> None:
        self.sets = tuple(sets)
        self._place = {rows: place for place, rows in enumerate(self.sets)}
        self._levels = np.array([0 if rows is None else rows[0] + 1 for rows in self.sets], dtype=np.intp)
        self._joined = [
            (place, np.array(rows) + 1) for place, rows in enumerate(self.sets) if rows is not None and len(rows) > 1
        ]

    def __len__(self) -> int:
        return len(self.sets)

    def norms(self, levels: FloatArray) -> WideArray:
        """Return (n,) norms out of (P + 1,) levels; not above 0 where no gradient is there."""
        norms = levels[self._levels].astype(np.float64)
        for place, members in self._joined:
            norms[place] = np.sqrt(np.square(np.maximum(levels[members], 0.0), dtype=np.float64).sum())
        return norms

    def places(self, sets: Sequence[Rows]) -> npt.NDArray[np.intp]:
        """Return where sets are; one that is not followed itself counts as the smallest one around it.

        Example:
            >>> NormSets([None, (0, 1), (0,)]).places([(0,), (1,), (2,), None])
            array([2, 1, 0, 0])
        """
        return np.array(
            [self._place[rows] if rows in self._place else self._around(rows) for rows in sets], dtype=np.intp
        )

    def _around(self, rows: Rows) -> int:
        wider = [other for other in self.sets if other is None or (rows is not None and set(rows) <= set(other))]
        if not wider:
            raise KeyError(f"no set around {rows} is followed")
        return self._place[min(wider, key=lambda other: np.inf if other is None else len(other))]
