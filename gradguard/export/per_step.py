"""The table `statistics`: a row a recorded step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.read import Run
from gradguard.export.table import Block, Column, Table, masked
from gradguard.record.statistics import Flag


NORM = "norm:"  # what the column of a parameter begins with
FIXED = (
    Column("step", "int64", "Optimizer step, from 0; a step that was taken again after a resume is there twice."),
    Column("loss", "float64", "Mean of the losses observed for the step; NaN when there were none or one of them was."),
    Column("lr", "float64", "Learning rate of the first param group, without the guard's factor."),
    Column("lr_factor", "float32", "The guard's factor on the learning rate, 1 when it had none."),
    Column("global_norm", "float64", "L2 norm of all gradients, before any clip."),
    Column("clip_coef", "float32", "What the gradients were multiplied by, 1 when they were not clipped."),
    Column("loss_scale", "float32", "Scale of the GradScaler, 1 without one."),
    Column("skipped_by_guard", "bool", "The guard dropped the step."),
    Column("skipped_by_scaler", "bool", "GradScaler dropped the step."),
    Column("finding", "bool", "Something was found."),
    Column("intervention", "bool", "Something was done about it."),
    Column("stale", "bool", "The gradients were left over from the step before."),
)
PER_PARAMETER = Column(
    f"{NORM}<parameter>", "float32", "L2 norm of the parameter's gradient, before any clip.", is_optional=True
)
_FLAGS = {flag.name.lower(): flag for flag in Flag if flag.name}


class Statistics(Table):
    """The per-step statistics of a run, a column a parameter.

    Args:
        run: as read.
        every: keep every so many steps, and all at which something was found, done or skipped; >= 1.
    """

    name = "statistics"

    def __init__(self, run: Run, every: int = 1) -> None:
        self._run = run
        per_parameter = (Column(NORM + name, "float32", PER_PARAMETER.what, True) for name in run.parameters)
        self.columns = (*FIXED, *per_parameter)
        self.kept: npt.NDArray[np.int64] = np.arange(run.statistics.num_steps)
        if every > 1:
            self.kept = np.flatnonzero((self.kept % every == 0) | (run.statistics["flags"] != 0))
        self.num_rows = len(self.kept)

    def rows(self, start: int, stop: int) -> Block:
        """Return rows `start` to `stop`."""
        columns, kept = self._run.statistics, self.kept[start:stop]
        fixed: list[npt.NDArray[Any]] = []
        for column in FIXED:
            if column.name in _FLAGS:
                fixed.append((columns["flags"][kept] & _FLAGS[column.name]) != 0)
            else:
                fixed.append(columns[column.name][kept])
        norms = self._norms(kept)
        return [*fixed, *(masked(norms[:, place], norms[:, place] < 0) for place in range(norms.shape[1]))]

    def _norms(self, kept: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the norms of some rows; those between them are read in pieces and dropped."""
        columns = self._run.statistics
        if not len(kept):
            return columns.norms_between(0, 0)
        if kept[-1] - kept[0] + 1 == len(kept):
            return columns.norms_between(int(kept[0]), int(kept[-1]) + 1)
        pieces = np.array_split(kept, max(1, int(kept[-1] - kept[0]) // max(1, len(kept))))
        return np.concatenate(
            [
                columns.norms_between(int(piece[0]), int(piece[-1]) + 1)[piece - piece[0]]
                for piece in pieces
                if len(piece)
            ]
        )
