"""The rows of a packed chunk, read in parts, see `gradguard.record.packing`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from gradguard.audit.regular_file import open_regular
from gradguard.record.packing import HEAD, MAGIC, planes_of


class PackedRows:
    """The rows of one packed file, none of them in memory: `rows[start:stop]` reads these.

    Args:
        path: of the file.
        dtype: of a row.
        max_bytes: of all rows, unpacked: more than any chunk has.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not a packed file of such rows, or not all of one.
    """

    def __init__(self, path: Path, dtype: np.dtype[np.void], max_bytes: int) -> None:
        self.dtype = dtype
        self._path = path
        self._planes = planes_of(dtype)
        self._num_rows: int
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(HEAD.size)
            if len(head) < HEAD.size or not head.startswith(MAGIC):
                raise ValueError("not the header of packed rows")
            _, self._num_rows, num_planes = HEAD.unpack(head)
            if num_planes != len(self._planes) or self._num_rows * dtype.itemsize > max_bytes:
                raise ValueError(f"{self._num_rows:,} rows of {num_planes:,} planes: not such rows as run.json says")
            sizes = np.frombuffer(file.read(4 * num_planes), dtype="<u4").astype(np.int64)
        start = HEAD.size + 4 * num_planes
        if len(sizes) != num_planes or start + int(sizes.sum()) != size:
            raise ValueError(f"{size:,} bytes, {start + int(sizes.sum()):,} when it was written")
        if any(size > self._num_rows * plane.width for size, plane in zip(sizes.tolist(), self._planes, strict=True)):
            raise ValueError("a plane is larger than what it holds")
        self._sizes = sizes.tolist()
        self._starts = (start + np.cumsum(sizes) - sizes).tolist()

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, rows: slice) -> npt.NDArray[np.void]:
        return self._read(self.dtype, *bounds(rows, self._num_rows))

    def blocks(self) -> Iterator[npt.NDArray[np.void]]:
        """Yield all rows: a packed chunk is small enough to be one block."""
        if self._num_rows:
            yield self[:]

    def heads(self, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """Return some columns of all rows without reading the others.

        Args:
            dtype: of these columns.
        """
        return self._read(dtype, 0, self._num_rows)

    def _read(self, dtype: np.dtype[np.void], start: int, stop: int) -> npt.NDArray[np.void]:
        rows = np.empty(stop - start, dtype=dtype)
        with open_regular(self._path) as file:
            for name in dtype.names or ():
                rows[name] = self._field(file, name, start, stop).reshape(rows[name].shape)
        return rows

    def _field(self, file: BinaryIO, name: str, start: int, stop: int) -> npt.NDArray[np.generic]:
        places = [place for place, plane in enumerate(self._planes) if plane.field == name]
        width = self._planes[places[0]].width
        values = np.empty((width * (stop - start), len(places)), dtype=np.uint8)
        for byte, place in enumerate(places):
            values[:, byte] = self._plane(file, place, width * start, width * stop)
        return values.reshape(-1).view(self.dtype[name].base)

    def _plane(self, file: BinaryIO, place: int, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return bytes of one plane; what a damaged stream does not hold is 0, and `verify` says so."""
        size, at = self._sizes[place], self._starts[place]
        if size == self._num_rows * self._planes[place].width:
            file.seek(at + start)
            data = file.read(stop - start)
        else:
            file.seek(at)
            data = _inflate(file.read(size), stop)[start:]
        return np.frombuffer(data.ljust(stop - start, b"\0"), dtype=np.uint8)


def bounds(rows: slice, num_rows: int) -> tuple[int, int]:
    """Return where a slice of rows starts and stops.

    Raises:
        ValueError: it leaves rows out.
    """
    start, stop, step = rows.indices(num_rows)
    if step != 1:
        raise ValueError(f"rows are read one after the other, got a step of {step}")
    return start, max(start, stop)


def _inflate(data: bytes, num_bytes: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, num_bytes) if num_bytes else b""
    except zlib.error:
        return b""
