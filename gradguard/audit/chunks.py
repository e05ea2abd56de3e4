"""Chunks of rows mapped from disk, and the columns over all of them, joined only when asked for."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gradguard.audit.npy_header import read_dtype
from gradguard.audit.problem import Problem


class Chunk(NamedTuple):
    """One file of rows.

    Attributes:
        file: name below the run directory.
        parameters: names of the columns of `norms`.
        rows: structured array over the steps, mapped from the file.
        num_spare_bytes: what is left of a row that was not written to its end.
    """

    file: str
    parameters: list[str]
    rows: npt.NDArray[np.void]
    num_spare_bytes: int


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
            self._cache[name] = self._join(name)
        return self._cache[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def _join(self, name: str) -> npt.NDArray[Any]:
        """Return one of the columns, over all chunks."""

    def _scalars(self, name: str, dtype: Any) -> npt.NDArray[Any]:
        """Return a column that has one number a row."""
        return np.concatenate([np.empty(0, dtype=dtype), *(chunk.rows[name] for chunk in self._chunks)])

    def _placed(self) -> Iterator[tuple[int, Chunk, list[int] | slice]]:
        """Return for each chunk the row of the run at which it begins, and where its parameters' columns belong."""
        column = {parameter: index for index, parameter in enumerate(self.parameters)}
        first = 0
        for chunk in self._chunks:
            is_whole = chunk.parameters == self.parameters
            yield first, chunk, slice(None) if is_whole else [column[name] for name in chunk.parameters]
            first += len(chunk.rows)


def all_parameters(layouts: Any) -> list[str]:
    """Return the names in the layouts of `run.json`, in the order of their first appearance."""
    try:
        return list(dict.fromkeys(str(name) for layout in layouts for name in layout["parameters"]))
    except (KeyError, TypeError):
        return []


def open_chunks(
    folder: Path, layouts: Any, dtype_of: Callable[[int], np.dtype[np.void]], first_chunk: str
) -> tuple[list[Chunk], list[Problem]]:
    """Map the chunks of a run that can be read, and say what is wrong with the others.

    Args:
        folder: the folder of the chunks.
        layouts: as in `run.json`: which parameters the columns stand for, from which chunk on.
        dtype_of: dtype of a row about P parameters.
        first_chunk: the key of a layout that says from which chunk on.
    """
    chunks: list[Chunk] = []
    problems: list[Problem] = []
    for path in sorted(folder.glob("*.npy")):
        file = f"{folder.name}/{path.name}"
        try:
            if not re.fullmatch(r"\d{6,}\.npy", path.name):
                raise ValueError("not the name of a chunk")
            parameters = _parameters(layouts, int(path.stem), first_chunk)
            chunks.append(Chunk(file, parameters, *_map_rows(path, len(parameters), dtype_of(len(parameters)))))
        except (ValueError, OSError, KeyError, TypeError) as error:
            problems.append(Problem(kind="statistics", file=file, message=f"cannot be read: {error}"))
    return chunks, problems


def _parameters(layouts: Any, index: int, first_chunk: str) -> list[str]:
    current = [layout for layout in layouts if layout[first_chunk] <= index]
    if not current:
        raise ValueError("run.json does not say which parameters it holds")
    return [str(name) for name in current[-1]["parameters"]]


def _map_rows(path: Path, num_parameters: int, expected: np.dtype[np.void]) -> tuple[npt.NDArray[np.void], int]:
    """Map whole rows by the size of the file, not by the header: the process may have died before the header's turn."""
    size = path.stat().st_size
    if size == 0:  # made, and the process ended before the first row
        return np.empty(0, dtype=expected), 0
    with open(path, "rb") as file:
        dtype = read_dtype(file)
        start = file.tell()
    if dtype != expected:
        raise ValueError(f"rows of {dtype.itemsize} bytes; {num_parameters} parameters need {expected.itemsize} bytes")
    num_rows, num_spare_bytes = divmod(size - start, dtype.itemsize)
    if num_rows == 0:
        return np.empty(0, dtype=expected), num_spare_bytes
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=(num_rows,)), num_spare_bytes
