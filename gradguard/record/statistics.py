"""Per-step statistics on disk: chunks of fixed-size rows that numpy loads by itself.

    statistics/000000.npy, 000001.npy, ...    structured dtype, no objects: `row_dtype(P)`

A chunk is a valid `.npy` file after every flush. Rows behind the count in its header (the process died between two
writes) are still found from the size of the file.
"""

from __future__ import annotations

import math
import os
import struct
from enum import IntFlag
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.stats import ABSENT, FloatArray


BUFFER_ROWS = 64
BUFFER_BYTES = 256 * 1024
CHUNK_BYTES = 32 * 1024 * 1024
SCALARS: tuple[tuple[str, str], ...] = (
    ("step", "<i8"),
    ("loss", "<f8"),
    ("lr", "<f8"),
    ("global_norm", "<f8"),
    ("lr_factor", "<f4"),
    ("clip_coef", "<f4"),
    ("loss_scale", "<f4"),
    ("flags", "<u4"),
)
_PACK = struct.Struct("<qdddfffI")  # the scalars in one call: 0.15 us, against 0.67 us for eight numpy assignments
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class Flag(IntFlag):
    """What happened at a step, in the column `flags`."""

    SKIPPED_BY_GUARD = 1
    SKIPPED_BY_SCALER = 2
    FINDING = 4
    INTERVENTION = 8
    STALE = 16


def row_dtype(num_parameters: int) -> np.dtype[np.void]:
    """Return the dtype of a row: the scalars, then `norms` (P,) float32.

    In `norms`, `ABSENT` (-1) marks a parameter without a gradient, NaN and infinity non-finite entries.
    """
    return np.dtype([*SCALARS, ("norms", "<f4", (num_parameters,))])


def chunk_name(index: int) -> str:
    """Return the file name of a chunk.

    Example:
        >>> chunk_name(3)
        '000003.npy'
    """
    return f"{index:06d}.npy"


class StatisticsWriter:
    """Appends one row a step to chunked files, through a buffer of fixed size.

    Args:
        directory: existing folder that takes the chunks.
        num_parameters: P, parameter tensors a row.
        chunk_rows: a chunk ends with the flush that brings it to so many rows, >= 1; None for about 32 MB a chunk.

    Attributes:
        chunk: index of the chunk that the next row goes to.
        num_rows: rows appended and not lost.
        num_lost: rows given up because the disk did not take them.
    """

    def __init__(self, directory: Path, num_parameters: int, chunk_rows: int | None = None) -> None:
        self.directory = directory
        self.chunk = 0
        self.num_rows = 0
        self.num_lost = 0
        self._chunk_rows = chunk_rows
        self._file: FileIO | None = None
        self._filled = 0  # rows in the buffer
        self._rows = 0  # rows of the chunk on disk
        self._allocate(num_parameters)

    def append(
        self,
        step: int,
        loss: float,
        lr: float,
        global_norm: float,
        lr_factor: float,
        clip_coef: float,
        loss_scale: float,
        flags: int,
        norms: FloatArray,
    ) -> None:
        """Add the row of one step; written at the next flush, at the latest after `BUFFER_ROWS` rows.

        Args:
            step: optimizer step, above the one before.
            loss: NaN when none was observed.
            lr: learning rate without the guard's factor.
            global_norm: of the gradient, before any clip.
            lr_factor: the guard's factor, 1 when none.
            clip_coef: what the gradient was multiplied by, 1 when it was not clipped.
            loss_scale: of the GradScaler, 1 without one.
            flags: `Flag`s.
            norms: (P,) float32, copied.

        Raises:
            OSError: the buffer was full and could not be written; its rows are counted in `num_lost`.
        """
        row = self._filled
        offset = row * self._row_bytes
        try:
            _PACK.pack_into(self._bytes, offset, step, loss, lr, global_norm, lr_factor, clip_coef, loss_scale, flags)
        except OverflowError:  # a loss scale that has outgrown float32
            narrow = [_as_float32(number) for number in (lr_factor, clip_coef, loss_scale)]
            _PACK.pack_into(self._bytes, offset, step, loss, lr, global_norm, *narrow, flags)
        self._norms[row][...] = norms
        self.num_rows += 1
        self._filled = row + 1
        if self._filled == self._capacity:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows.

        Raises:
            OSError: they could not be written. What is on disk stays as it was, and they are kept for the next flush
                unless the buffer is full.
        """
        if not self._filled:
            return
        try:
            self._write()
        except OSError:
            if self._filled == self._capacity:
                self.num_lost += self._filled
                self.num_rows -= self._filled
                self._filled = 0
            raise
        self._filled = 0
        if self._rows >= self._limit:
            self._end_chunk()

    def reshape(self, num_parameters: int) -> int:
        """Go on with rows of another size and return the index of the chunk that they start.

        Raises:
            OSError: the rows so far could not be written.
        """
        self.flush()
        self._end_chunk()
        self._allocate(num_parameters)
        return self.chunk

    def close(self) -> None:
        """Write what is buffered, wait until it is on the disk, and close; closing twice is fine.

        Raises:
            OSError: the last rows could not be written; the file is closed all the same.
        """
        try:
            self.flush()
            if self._file is not None:
                os.fsync(self._file.fileno())
        finally:
            self._end_chunk()

    def _allocate(self, num_parameters: int) -> None:
        dtype = row_dtype(num_parameters)
        self._row_bytes = dtype.itemsize
        self._limit = self._chunk_rows or max(1, CHUNK_BYTES // dtype.itemsize)
        self._capacity = min(max(1, BUFFER_BYTES // dtype.itemsize), BUFFER_ROWS, self._limit)
        buffer: npt.NDArray[Any] = np.full(self._capacity, ABSENT, dtype=dtype)
        self._dtype = dtype
        self._bytes = buffer.view(np.uint8).data
        self._norms = list(buffer["norms"])  # a view a row: indexing a list is cheaper than indexing an array

    def _write(self) -> None:
        data = self._bytes[: self._filled * self._row_bytes]
        header = _header(self._dtype, self._rows + self._filled)
        if self._file is None:
            self._file = open(self.directory / chunk_name(self.chunk), "xb", buffering=0)
        end = len(header) + self._rows * self._row_bytes if self._rows else 0
        try:
            self._file.seek(end)
            _write_all(self._file, data if self._rows else header + bytes(data))
            if self._rows:
                self._file.seek(0)
                _write_all(self._file, header)
        except OSError:
            self._file.truncate(end)
            raise
        self._rows += self._filled

    def _end_chunk(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        self._rows = 0
        self.chunk += 1


def _as_float32(number: float) -> float:
    return math.copysign(math.inf, number) if abs(number) > _FLOAT32_MAX else number


def _header(dtype: np.dtype[np.void], num_rows: int) -> bytes:
    """Return the `.npy` header; numpy pads it so that its length does not depend on the number of rows."""
    file = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (num_rows,)})
    return file.getvalue()


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    written = file.write(data)
    if written != len(data):
        raise OSError(f"the disk took {written} of {len(data)} bytes of statistics")
