"""The per-step statistics of a run that goes on: the last rows, of which each call reads those that are new."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gradguard.audit.npy_header import read_dtype
from gradguard.audit.packed_rows import PackedRows
from gradguard.record.chunks import chunk_name, packed_name
from gradguard.record.statistics import SCALARS, row_dtype


BLOCK_BYTES = 4 * 1024 * 1024
MAX_PACKED_BYTES = 64 * 1024 * 1024  # unpacked
RECENT = 50  # rows whose norms are kept
SCALAR_DTYPE = np.dtype(list(SCALARS))


class RowTail:
    """Follows the chunks of one run by the sizes of their files; neither mapped memory nor notices of changes.

    Args:
        folder: of the chunks; it need not be there yet.
        keep: rows whose scalars are kept.

    Attributes:
        num_rows: rows of the run so far.
        scalars: (at most `keep`,) structured array of the last rows, without their norms.
        norms: (at most `RECENT`, P) float32, of the last of these rows.
        parameters: names of the P columns.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self.num_rows = 0
        self.scalars: npt.NDArray[np.void] = np.empty(0, dtype=SCALAR_DTYPE)
        self.norms: npt.NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)
        self.parameters: list[str] = []
        self._chunk: int | None = None  # that is read on; None before the first call
        self._row = 0  # of it, to be read next

    @property
    def last_chunk(self) -> Path:
        """The file that grows, or has grown."""
        plain, packed = (self.folder / name(self._chunk or 0) for name in (chunk_name, packed_name))
        return packed if os.path.exists(packed) else plain

    def poll(self, layouts: Any) -> int:
        """Take in the rows that are new, at the first call the last ones, and return how many there are more.

        Args:
            layouts: as in `run.json`: which parameters the columns stand for, from which chunk on.
        """
        before = self.num_rows
        if self._chunk is None:
            self._find_start(layouts)
        while self._chunk is not None:
            following = (chunk_name(self._chunk + 1), packed_name(self._chunk + 1))
            has_next = any(os.path.exists(self.folder / name) for name in following)  # if so, this one grows no more
            self._read_on(layouts)
            if not has_next:
                break
            self._chunk, self._row = self._chunk + 1, 0
        return self.num_rows - before

    def _find_start(self, layouts: Any) -> None:
        """Count the rows of the chunks that are complete, and go so far back that `keep` rows are read."""
        try:
            found = (re.fullmatch(r"(\d{6,})\.(npy|packed)", entry.name, re.ASCII) for entry in os.scandir(self.folder))
            indices = sorted({int(name[1]) for name in found if name})
        except OSError:
            indices = []
        counts = [(index, self._count(index, layouts)) for index in indices]
        missing = self.keep
        for index, count in reversed(counts):
            self._chunk, self._row = index, max(0, count - missing)
            missing -= count
            if missing <= 0:
                break
        self.num_rows = sum(count for index, count in counts if index < (self._chunk or 0)) + self._row

    def _count(self, index: int, layouts: Any) -> int:
        try:
            dtype = row_dtype(len(_parameters(layouts, index)))
            try:
                with open(self.folder / chunk_name(index), "rb") as file:
                    return _rows_in(file, dtype)[1]
            except FileNotFoundError:
                return len(self._packed(index, dtype))
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _read_on(self, layouts: Any) -> None:
        assert self._chunk is not None
        try:
            parameters = _parameters(layouts, self._chunk)
            dtype = row_dtype(len(parameters))
            try:
                with open(self.folder / chunk_name(self._chunk), "rb") as file:
                    start, count = _rows_in(file, dtype)
                    file.seek(start + self._row * dtype.itemsize)
                    for rows in _blocks(file, dtype, count - self._row):
                        self._take(rows, parameters)
                        self._row += len(rows)
            except FileNotFoundError:  # it grows no more, and is packed
                rows = self._packed(self._chunk, dtype)[self._row :]
                self._take(rows, parameters)
                self._row += len(rows)
        except (OSError, ValueError, KeyError, TypeError):  # not set up yet, or damaged: `verify` says which
            return

    def _packed(self, index: int, dtype: np.dtype[np.void]) -> PackedRows:
        return PackedRows(self.folder / packed_name(index), dtype, MAX_PACKED_BYTES)

    def _take(self, rows: npt.NDArray[np.void], parameters: list[str]) -> None:
        scalars = np.empty(len(rows), dtype=SCALAR_DTYPE)
        for name, _ in SCALARS:
            scalars[name] = rows[name]
        self.scalars = np.concatenate([self.scalars, scalars])[-self.keep :]
        if parameters != self.parameters:
            self.parameters, self.norms = parameters, np.empty((0, len(parameters)), dtype=np.float32)
        self.norms = np.concatenate([self.norms, rows["norms"][-RECENT:]])[-RECENT:]
        self.num_rows += len(rows)


def _parameters(layouts: Any, index: int) -> list[str]:
    current = [layout for layout in layouts if layout["first_chunk"] <= index]
    if not current:
        raise ValueError("run.json does not say which parameters it holds")
    return [str(name) for name in current[-1]["parameters"]]


def _rows_in(file: BinaryIO, expected: np.dtype[np.void]) -> tuple[int, int]:
    """Return where the rows begin and how many whole ones there are, by the size: the header is written after them."""
    size = file.seek(0, 2)
    file.seek(0)
    if size == 0:
        raise ValueError("no rows yet")
    dtype = read_dtype(file)
    if dtype != expected:
        raise ValueError("rows of another size than run.json says")
    return file.tell(), (size - file.tell()) // dtype.itemsize


def _blocks(file: BinaryIO, dtype: np.dtype[np.void], count: int) -> Iterator[npt.NDArray[np.void]]:
    """Yield the next `count` rows of a file in blocks; fewer when the file turns out to be shorter."""
    at_once = max(1, BLOCK_BYTES // dtype.itemsize)
    while count > 0:
        data = file.read(min(count, at_once) * dtype.itemsize)
        rows = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype=dtype)
        if not len(rows):
            return
        yield rows
        count -= len(rows)
