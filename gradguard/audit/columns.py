"""The per-step statistics of a run as numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.chunks import Chunk, ChunkColumns, open_chunks
from gradguard.audit.problem import Problem
from gradguard.record.directory import STATISTICS_FOLDER
from gradguard.record.statistics import SCALARS, row_dtype
from gradguard.stats import ABSENT


class Columns(ChunkColumns):
    """Arrays over the S recorded steps by name; each is joined from the chunks at its first use.

    "step" int64, "loss", "lr", "global_norm" float64, "lr_factor", "clip_coef", "loss_scale" float32 and "flags" uint32
    are (S,); "norms" is (S, P) float32, -1 where a parameter had no gradient or was not there yet.
    """

    names = (*(name for name, _ in SCALARS), "norms")

    def _join(self, name: str) -> npt.NDArray[Any]:
        return self.norms_between(0, self.num_steps) if name == "norms" else self._scalars(name, dict(SCALARS)[name])

    def norms_between(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return rows `start` to `stop` of "norms" without reading the others; (stop - start, P)."""
        norms = np.full((stop - start, len(self.parameters)), ABSENT, dtype=np.float32)
        for first, chunk, places in self._placed():
            low, high = max(start, first), min(stop, first + len(chunk.rows))
            if low < high:
                norms[low - start : high - start, places] = chunk.rows["norms"][low - first : high - first]
        return norms


def open_statistics_chunks(path: Path, layouts: Any) -> tuple[list[Chunk], list[Problem]]:
    """Map the chunks of a run directory that can be read, and say what is wrong with the others."""
    return open_chunks(path / STATISTICS_FOLDER, layouts, row_dtype, "first_chunk")
