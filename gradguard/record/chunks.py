"""Rows of one size in chunked files that numpy loads by itself.

    000000.packed, 000001.npy, ...    structured dtype, no objects

A chunk is a valid `.npy` file after every flush. Rows behind the count in its header (the process died between two
writes) are still found from the size of the file. When it has ended it is packed, see `packing`, unless it is small;
for a moment both files are there, and hold the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gradguard.evidence.stats import ABSENT
from gradguard.record.atomic_write import sync_folder
from gradguard.record.packing import pack
from gradguard.record.seals import SealedRows


BUFFER_ROWS = 64
BUFFER_BYTES = 256 * 1024
CHUNK_BYTES = 4 * 1024 * 1024  # are packed in some 50 ms
PACK_BYTES = 96 * 1024  # a chunk of fewer stays as numpy loads it


def chunk_name(index: int) -> str:
    """Return the file name of a chunk.

    Example:
        >>> chunk_name(3)
        '000003.npy'
    """
    return f"{index:06d}.npy"


def packed_name(index: int) -> str:
    """Return the file name of a chunk that was packed.

    Example:
        >>> packed_name(3)
        '000003.packed'
    """
    return f"{index:06d}.packed"


class Watcher(Protocol):
    """Who is told when rows go to the disk."""

    def before_write(self) -> None:
        """The disk is about to be touched; an OSError stops it."""

    def after_write(self) -> None:
        """Rows were written; an OSError is not theirs."""


class ChunkWriter(ABC):
    """Writes rows through a buffer of fixed size; the subclass fills the row `_filled` and calls `_advance`.

    Args:
        directory: folder that takes the chunks; made for the first one.
        num_parameters: P, parameter tensors a row.
        chunk_rows: a chunk ends with the flush that brings it to so many rows, >= 1; None for about 4 MB a chunk.
        watcher: is told of every write.

    Attributes:
        chunk: index of the chunk that the next row goes to.
        num_rows: rows appended and not lost.
        num_lost: rows given up because the disk did not take them.
        num_unsealed: rows on disk that `unsealed` tells of.
    """

    def __init__(
        self,
        directory: Path,
        num_parameters: int,
        chunk_rows: int | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.directory = directory
        self.chunk = 0
        self.num_rows = 0
        self.num_lost = 0
        self.num_unsealed = 0
        self._watcher = watcher
        self._ended: list[SealedRows] = []  # in chunks that ended since the last seal
        self._digest = hashlib.sha256()  # of the rows of this chunk since then
        self._sealed = 0  # rows of this chunk before them
        self._chunk_rows = chunk_rows
        self._file: FileIO | None = None
        self._filled = 0  # rows in the buffer
        self._rows = 0  # rows of the chunk on disk
        self._allocate(num_parameters)

    @staticmethod
    @abstractmethod
    def row_dtype(num_parameters: int) -> np.dtype[np.void]:
        """Return the dtype of a row about P parameters; it has no gaps."""

    def _advance(self) -> None:
        """Count the row that was filled in, and write the buffer when it is full.

        Raises:
            OSError: it could not be written; its rows are counted in `num_lost`.
        """
        self.num_rows += 1
        self._filled += 1
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
            if self._watcher is not None:
                self._watcher.before_write()
            self._write()
        except OSError:
            if self._filled == self._capacity:
                self.num_lost += self._filled
                self.num_rows -= self._filled
                self._filled = 0
            raise
        self._filled = 0
        if self._rows >= self._limit:
            self._pack()
            self._end_chunk()
        if self._watcher is not None:
            self._watcher.after_write()

    def unsealed(self) -> list[SealedRows]:
        """Return which rows came to the disk since `sealed` was called, and what they hash to."""
        return [*self._ended, *([self._block()] if self._rows > self._sealed else [])]

    def sealed(self) -> None:
        """Take what `unsealed` told as written down."""
        self._ended = []
        self._digest, self._sealed = hashlib.sha256(), self._rows
        self.num_unsealed = 0

    def reshape(self, num_parameters: int) -> int:
        """Go on with rows of another size and return the index of the chunk that they start.

        Raises:
            OSError: the rows so far could not be written.
        """
        self.flush()
        self._pack()
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
            self._pack()
        finally:
            self._end_chunk()

    def abandon(self) -> None:
        """Close the file; what is buffered is lost."""
        self.num_lost += self._filled
        self._filled = 0
        self._end_chunk()

    def _allocate(self, num_parameters: int) -> None:
        self._dtype = self.row_dtype(num_parameters)
        self._row_bytes = self._dtype.itemsize
        self._limit = self._chunk_rows or max(1, CHUNK_BYTES // self._row_bytes)
        self._capacity = min(max(1, BUFFER_BYTES // self._row_bytes), BUFFER_ROWS, self._limit)
        self._buffer: npt.NDArray[Any] = np.full(self._capacity, ABSENT, dtype=self._dtype)
        self._bytes = self._buffer.view(np.uint8).data

    def _write(self) -> None:
        data = self._bytes[: self._filled * self._row_bytes]
        header = npy_header(self._dtype, self._rows + self._filled)
        if self._file is None:
            self.directory.mkdir(exist_ok=True)
            self._file = open(self.directory / chunk_name(self.chunk), "x+b", buffering=0)
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
        self._digest.update(data)
        self.num_unsealed += self._filled

    def _pack(self) -> None:
        """Put a packed file in the place of the chunk that ends; if the disk does not take it, the chunk stays."""
        if self._file is None or self._rows * self._row_bytes < PACK_BYTES:
            return
        path = self.directory / chunk_name(self.chunk)
        temporary = self.directory / f".{packed_name(self.chunk)}.{os.getpid()}.tmp"
        try:
            if not os.path.samestat(os.stat(path), os.fstat(self._file.fileno())):
                return  # another run's
            rows = np.empty(self._rows, dtype=self._dtype)
            self._file.seek(self._file.seek(0, os.SEEK_END) - rows.nbytes)
            if self._file.readinto(rows.view(np.uint8).data) != rows.nbytes:
                return
            with open(temporary, "xb") as file:
                file.write(pack(rows))
                file.flush()
                os.fsync(file.fileno())  # before the only other copy goes
            os.replace(temporary, self.directory / packed_name(self.chunk))
            sync_folder(self.directory)
            path.unlink()
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _end_chunk(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        if self._rows > self._sealed and self._watcher is not None:
            self._ended.append(self._block())
        self._digest, self._sealed = hashlib.sha256(), 0
        self._rows = 0
        self.chunk += 1

    def _block(self) -> SealedRows:
        file = f"{self.directory.name}/{chunk_name(self.chunk)}"
        return SealedRows(file=file, start=self._sealed, stop=self._rows, sha256=self._digest.hexdigest())


def npy_header(dtype: np.dtype[np.void], num_rows: int) -> bytes:
    """Return the `.npy` header; numpy pads it so that its length does not depend on the number of rows."""
    file = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (num_rows,)})
    return file.getvalue()


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    written = file.write(data)
    if written != len(data):
        raise OSError(f"the disk took {written} of {len(data)} bytes of rows")
