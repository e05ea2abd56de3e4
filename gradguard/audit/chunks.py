"""Chunks of rows on disk, read in blocks and only where asked for."""

from __future__ import annotations

import os
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gradguard.audit.packed_rows import PackedRows, bounds
from gradguard.audit.problem import Problem
from gradguard.audit.regular_file import open_regular
from gradguard.record.chunks import BUFFER_BYTES, npy_header


CHUNK_BYTES = 32 << 20  # of the largest chunk; those of records from before are
BLOCK_BYTES = 1 << 20  # read at a time
PAGE_BYTES = 4096  # of wider rows the first bytes are read alone: what lies between them costs nothing then


class Rows:
    """The rows of one file, none of them in memory: `rows[start:stop]` reads these.

    Args:
        path: of the file.
        dtype: of a row.
        offset: bytes before the first one.
        num_rows: whole rows.
    """

    def __init__(self, path: Path, dtype: np.dtype[np.void], offset: int, num_rows: int) -> None:
        self.dtype = dtype
        self._path = path
        self._offset = offset
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, rows: slice) -> npt.NDArray[np.void]:
        start, stop = bounds(rows, self._num_rows)
        try:
            with open_regular(self._path) as file:
                return self._read(file, start, stop)
        except FileNotFoundError:
            return self._packed()[start:stop]

    def blocks(self) -> Iterator[npt.NDArray[np.void]]:
        """Yield all rows in order, about a megabyte at a time."""
        num_rows = max(1, BLOCK_BYTES // self.dtype.itemsize)
        try:
            file = open_regular(self._path)
        except FileNotFoundError:
            yield self._packed()[: self._num_rows]
            return
        with file:
            for start in range(0, self._num_rows, num_rows):
                yield self._read(file, start, min(self._num_rows, start + num_rows))

    def heads(self, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """Return the first columns of all rows.

        Args:
            dtype: of these columns alone.
        """
        if not os.path.exists(self._path):
            return self._packed().heads(dtype)[: self._num_rows]
        heads = np.zeros(self._num_rows, dtype=dtype)
        if self.dtype.itemsize > PAGE_BYTES:
            num_bytes, target = dtype.itemsize, heads.view(np.uint8)
            with open_regular(self._path) as file:
                raw = file.raw  # type: ignore[attr-defined]  # a buffer would fetch what lies behind as well
                for row in range(self._num_rows):
                    raw.seek(self._offset + row * self.dtype.itemsize)
                    raw.readinto(target[row * num_bytes : (row + 1) * num_bytes].data)
            return heads
        done = 0
        for block in self.blocks():
            for name in dtype.names or ():
                heads[name][done : done + len(block)] = block[name]
            done += len(block)
        return heads

    def _packed(self) -> PackedRows:
        """Return the rows of a run that has packed this chunk since it was opened here."""
        return PackedRows(self._path.with_suffix(".packed"), self.dtype, _most_bytes(self.dtype))

    def _read(self, file: BinaryIO, start: int, stop: int) -> npt.NDArray[np.void]:
        """Read rows; what a file that was cut since does not hold is 0."""
        rows = np.empty(stop - start, dtype=self.dtype)
        target = rows.view(np.uint8)
        file.seek(self._offset + start * self.dtype.itemsize)
        target[file.readinto(target.data) :] = 0  # type: ignore[attr-defined]
        return rows


class Chunk:
    """One file of rows.

    Attributes:
        file: name below the run directory.
        sealed_as: name that seals call it by, which is the one that it had before it was packed.
        parameters: names of the columns of `norms`.
        rows: of the file.
        num_told: how many rows its header says that there are.
        header: the bytes before the first row; none in a packed file.
        num_spare_bytes: what is left of a row that was not written to its end.
    """

    def __init__(self, path: Path, parameters: list[str], dtype: np.dtype[np.void]) -> None:
        self.file = f"{path.parent.name}/{path.name}"
        self.sealed_as = f"{path.parent.name}/{path.stem}.npy"
        self.parameters = parameters
        self.rows: Rows | PackedRows
        if path.suffix == ".packed":
            self.rows = PackedRows(path, dtype, _most_bytes(dtype))
            self.num_told, self.header, self.num_spare_bytes = len(self.rows), b"", 0
            return
        self.num_told, self.header, num_bytes = _read_header(path, len(parameters), dtype)
        num_rows, self.num_spare_bytes = divmod(num_bytes, dtype.itemsize) if self.header else (0, num_bytes)
        self.rows = Rows(path, dtype, len(self.header), num_rows)


def all_parameters(layouts: Any) -> list[str]:
    """Return the names in the layouts of `run.json`, in the order of their first appearance."""
    return list(dict.fromkeys(name for _, names in _readable(layouts) for name in names))


def open_chunks(
    folder: Path, layouts: Any, dtype_of: Callable[[int], np.dtype[np.void]], first_chunk: str
) -> tuple[list[Chunk], list[Problem]]:
    """Open the chunks of a run that can be read, and say what is wrong with the others.

    Args:
        folder: the folder of the chunks.
        layouts: as in `run.json`: which parameters the columns stand for, from which chunk on.
        dtype_of: dtype of a row about P parameters.
        first_chunk: the key of a layout that says from which chunk on.
    """
    chunks: list[Chunk] = []
    problems: list[Problem] = []
    starts = _starts(layouts, first_chunk)
    for path in _files(folder):
        try:
            if not re.fullmatch(r"\d{6,12}\.(npy|packed)", path.name, re.ASCII):
                raise ValueError("not the name of a chunk")
            current = bisect_right([start for start, _ in starts], int(path.stem))
            if not current:
                raise ValueError("run.json does not say which parameters it holds")
            parameters = starts[current - 1][1]
            chunks.append(Chunk(path, parameters, dtype_of(len(parameters))))
        except (ValueError, OSError) as error:
            file = f"{folder.name}/{path.name}"
            reason = getattr(error, "strerror", None) or error
            problems.append(Problem(kind="statistics", file=file, message=f"cannot be read: {reason}"))
    return chunks, problems


def _files(folder: Path) -> list[Path]:
    """Return the files of the chunks; of one whose packing was cut short, the file that it was packed from."""
    plain = {path.stem: path for path in folder.glob("*.npy")}
    packed = {path.stem: path for path in folder.glob("*.packed")}
    return [path for _, path in sorted({**packed, **plain}.items())]


def _most_bytes(dtype: np.dtype[np.void]) -> int:
    """Return what the rows of no chunk exceed."""
    return CHUNK_BYTES + BUFFER_BYTES + 2 * dtype.itemsize


def _starts(layouts: Any, first_chunk: str) -> Sequence[tuple[int, list[str]]]:
    """Return from which chunk on which parameters are meant."""
    starts = ((layout.get(first_chunk), names) for layout, names in _readable(layouts))
    return sorted(((start, names) for start, names in starts if isinstance(start, int)), key=lambda entry: entry[0])


def _readable(layouts: Any) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the layouts with their names; of a damaged list those that can be read."""
    for layout in layouts if isinstance(layouts, list) else ():
        if isinstance(layout, dict) and isinstance(layout.get("parameters"), list):
            yield layout, [str(name) for name in layout["parameters"]]


def _read_header(path: Path, num_parameters: int, expected: np.dtype[np.void]) -> tuple[int, bytes, int]:
    """Return what a file says of its rows, its header, and the bytes behind it.

    Whole rows are counted by the size of the file, not by the header: the process may have died before the header's
    turn.
    """
    with open_regular(path) as file:
        size = file.seek(0, 2)
        if size == 0:  # made, and the process ended before the first row
            return 0, b"", 0
        if size > _most_bytes(expected) + PAGE_BYTES:
            raise ValueError(f"{size:,} bytes, more than any chunk has")
        file.seek(0)
        try:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"format {version} of a .npy file, expected (1, 0)")
            with warnings.catch_warnings():  # of what other programs may have written
                warnings.simplefilter("ignore")
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        except ValueError as error:
            file.seek(0)
            constant = npy_header(expected, 0).partition(b"'shape'")[0]
            if str(error).startswith("EOF") and constant.startswith(file.read(size)[: len(constant)]):
                return 0, b"", size  # cut off inside of the header
            raise
        except Exception:  # numpy parses it as Python, and whatever a tokenizer or a parser raises comes through
            raise ValueError("not the header of a .npy file") from None
        start = file.tell()
        if dtype != expected:
            needed = f"{num_parameters} parameters need {expected.itemsize} bytes"
            raise ValueError(f"rows of {dtype.itemsize} bytes; {needed}")
        file.seek(0)
        num_told = shape[0] if len(shape) == 1 else -1
        return num_told, file.read(start), size - start
