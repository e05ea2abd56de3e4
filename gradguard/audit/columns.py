"""Columns over all the chunks of a run, joined only when asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradguard.audit.chunks import Chunk, open_chunks
from gradguard.audit.problem import Problem
from gradguard.errors import RecordError
from gradguard.evidence.stats import ABSENT
from gradguard.record.directory import STATISTICS_FOLDER
from gradguard.record.statistics import SCALARS, row_dtype


MOST_ABSENT = 64  # times the bytes on disk that an array may take: most of it would stand for what was not there


class ChunkColumns(Mapping[str, npt.NDArray[Any]]):
    """Arrays over the recorded steps by name; each is joined from the chunks at its first use.

    Args:
        chunks: in order.
        parameters: names of the P columns; those of every chunk are among them.
    """

    names: ClassVar[tuple[str, ...]]

    def __init__(self, chunks: Sequence[Chunk], parameters: Sequence[str]) -> None:
        self.parameters = list(parameters)
        self.num_steps = sum(len(chunk.rows) for chunk in chunks)
        self._chunks = chunks
        self._cache: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self.names:
            raise KeyError(name)
        if name not in self._cache:
            self._cache.update(self._join(name))
        return self._cache[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def _join(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return one of the columns over all chunks, and others that come with it."""

    def _heads(self, dtype: np.dtype[np.void]) -> dict[str, npt.NDArray[Any]]:
        """Return the columns that have one number a row: all of them in one look at the files."""
        heads = [chunk.rows.heads(dtype) for chunk in self._chunks]
        return {
            name: np.concatenate([np.empty(0, dtype=dtype[name]), *(head[name] for head in heads)])
            for name in dtype.names or ()
        }

    def _placed(self) -> Iterator[tuple[int, Chunk, list[int] | slice]]:
        """Return for each chunk the row of the run at which it begins, and where its parameters' columns belong."""
        column = {parameter: index for index, parameter in enumerate(self.parameters)}
        first = 0
        for chunk in self._chunks:
            is_whole = chunk.parameters == self.parameters
            yield first, chunk, slice(None) if is_whole else [column[name] for name in chunk.parameters]
            first += len(chunk.rows)

    def _blank(self, shape: tuple[int, ...], value: float) -> npt.NDArray[np.float32]:
        """Return an array of one value.

        Raises:
            RecordError: it would be absurdly large beside what is on disk.
        """
        num_bytes = 4 * int(np.prod(shape, dtype=object))
        on_disk = sum(len(chunk.rows) * chunk.rows.dtype.itemsize for chunk in self._chunks)
        if num_bytes > MOST_ABSENT * (on_disk + 1_000_000):
            raise RecordError(
                f"an array of shape {shape} would take {num_bytes:,} bytes, for {on_disk:,} on disk: the layouts in "
                "run.json are damaged; read fewer rows at a time"
            )
        return np.full(shape, value, dtype=np.float32)


class Columns(ChunkColumns):
    """Arrays over the S recorded steps by name; each is joined from the chunks at its first use.

    "step" int64, "loss", "lr", "global_norm" float64, "lr_factor", "clip_coef", "loss_scale" float32 and "flags" uint32
    are (S,), and cost 48 bytes a step together; "norms" is (S, P) float32, -1 where a parameter had no gradient or was
    not there yet: 4 P bytes a step, so read a long run with `norms_between`.
    """

    names = (*(name for name, _ in SCALARS), "norms")

    def _join(self, name: str) -> dict[str, npt.NDArray[Any]]:
        if name == "norms":
            return {name: self.norms_between(0, self.num_steps)}
        return self._heads(np.dtype(list(SCALARS)))

    def norms_between(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return rows `start` to `stop` of "norms" without reading the others; (stop - start, P)."""
        norms = self._blank((stop - start, len(self.parameters)), ABSENT)
        for first, chunk, places in self._placed():
            low, high = max(start, first), min(stop, first + len(chunk.rows))
            if low < high:
                norms[low - start : high - start, places] = chunk.rows[low - first : high - first]["norms"]
        return norms


def open_statistics_chunks(path: Path, layouts: Any) -> tuple[list[Chunk], list[Problem]]:
    """Open the chunks of a run directory that can be read, and say what is wrong with the others."""
    return open_chunks(path / STATISTICS_FOLDER, layouts, row_dtype, "first_chunk")
