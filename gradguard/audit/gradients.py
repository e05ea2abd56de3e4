"""The full statistics of every gradient at the probed steps of a run, as numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.chunks import Chunk, open_chunks
from gradguard.audit.columns import ChunkColumns
from gradguard.audit.problem import Problem
from gradguard.evidence.stats import ABSENT
from gradguard.gradients.magnitude_bins import NUM_BINS, bin_edges, unpack_shares
from gradguard.record.directory import GRADIENTS_FOLDER
from gradguard.record.gradients import NUMBERS, gradients_dtype


class Gradients(ChunkColumns):
    """Arrays over the K probed steps by name; each is joined from the chunks at its first use.

    "step" is (K,) int64; "mean", "std", "max", "min", "zero_ratio" and "norm" are (K, P) float32; "histogram" is
    (K, P, B) float32, the share of entries in each of the B bins between `edges()`, kept to 4.5 %. How exact the others
    are is said at `GradientStatistics`; `run.policy["monitor"]["statistics"]` says whether they were sampled. A norm of
    -1 marks a parameter that had no gradient or was not there yet; its other numbers are NaN.
    """

    names = ("step", *NUMBERS, "histogram")

    def edges(self) -> npt.NDArray[np.float64]:
        """Return the edges of the bins of "histogram", ascending: (K, P, B + 1); NaN where it is."""
        return bin_edges(self["max"], self["min"])

    def between(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return rows `start` to `stop` of a column other than "step" without reading the others."""
        shape = (stop - start, len(self.parameters), *((NUM_BINS,) if name == "histogram" else ()))
        joined = self._blank(shape, ABSENT if name == "norm" else np.nan)
        for first, chunk, places in self._placed():
            low, high = max(start, first), min(stop, first + len(chunk.rows))
            if low >= high:
                continue
            rows = chunk.rows[low - first : high - first]
            part = rows[name]
            if name == "histogram":
                has_bins = np.isfinite(rows["max"]) & np.isfinite(rows["min"])
                part = np.where(has_bins[..., None], unpack_shares(part), np.float32(np.nan))
            joined[low - start : high - start, places] = part
        return joined

    def _join(self, name: str) -> dict[str, npt.NDArray[Any]]:
        if name == "step":
            return self._heads(np.dtype([("step", "<i8")]))
        return {name: self.between(name, 0, self.num_steps)}


def open_gradient_chunks(path: Path, layouts: Any) -> tuple[list[Chunk], list[Problem]]:
    """Map the chunks of a run directory that can be read, and say what is wrong with the others."""
    return open_chunks(path / GRADIENTS_FOLDER, layouts, gradients_dtype, "first_gradients_chunk")
