"""The full statistics of every gradient at the probed steps of a run, as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.columns import Chunk, open_chunks
from gradguard.audit.problem import Problem
from gradguard.magnitude_bins import NUM_BINS, bin_edges, unpack_shares
from gradguard.record.directory import GRADIENTS_FOLDER
from gradguard.record.gradients import NUMBERS, gradients_dtype
from gradguard.stats import ABSENT


class Gradients(Mapping[str, npt.NDArray[Any]]):
    """Arrays over the K probed steps by name; each is joined from the chunks at its first use.

    "step" is (K,) int64; "mean", "std", "max", "min", "zero_ratio" and "norm" are (K, P) float32; "histogram" is
    (K, P, B) float32, the share of entries in each of the B bins between `edges()`, kept to 4.5 %. How exact the others
    are is said at `GradientStatistics`; `run.policy["monitor"]["statistics"]` says whether they were sampled. A norm of
    -1 marks a parameter that had no gradient or was not there yet; its other numbers are NaN.

    Args:
        chunks: in order.
        parameters: names of the P columns; those of every chunk are among them.
    """

    def __init__(self, chunks: Sequence[Chunk], parameters: Sequence[str]) -> None:
        self.parameters = list(parameters)
        self.num_steps = sum(len(chunk.rows) for chunk in chunks)
        self._chunks = chunks
        self._cache: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._cache:
            self._cache[name] = self._join(name)
        return self._cache[name]

    def __iter__(self) -> Iterator[str]:
        return iter(["step", *NUMBERS, "histogram"])

    def __len__(self) -> int:
        return len(NUMBERS) + 2

    def edges(self) -> npt.NDArray[np.float64]:
        """Return the edges of the bins of "histogram", ascending: (K, P, B + 1); NaN where it is."""
        return bin_edges(self["max"], self["min"])

    def _join(self, name: str) -> npt.NDArray[Any]:
        if name == "step":
            return np.concatenate([np.empty(0, dtype=np.int64), *(chunk.rows["step"] for chunk in self._chunks)])
        if name not in (*NUMBERS, "histogram"):
            raise KeyError(name)
        column = {parameter: index for index, parameter in enumerate(self.parameters)}
        shape = (self.num_steps, len(self.parameters), *((NUM_BINS,) if name == "histogram" else ()))
        joined = np.full(shape, ABSENT if name == "norm" else np.nan, dtype=np.float32)
        first = 0  # row of the run at which the chunk begins
        for chunk in self._chunks:
            part = chunk.rows[name]
            if name == "histogram":
                has_bins = np.isfinite(chunk.rows["max"]) & np.isfinite(chunk.rows["min"])
                part = np.where(has_bins[..., None], unpack_shares(part), np.float32(np.nan))
            joined[first : first + len(part), [column[parameter] for parameter in chunk.parameters]] = part
            first += len(part)
        return joined


def open_gradient_chunks(path: Path, layouts: Any) -> tuple[list[Chunk], list[Problem]]:
    """Map the chunks of a run directory that can be read, and say what is wrong with the others."""
    return open_chunks(path / GRADIENTS_FOLDER, layouts, gradients_dtype, "first_gradients_chunk")
