"""Rows of a chunk that grows no more, in fewer bytes and without a change of any bit.

    000000.packed    magic, numbers of rows and planes, bytes of each plane (uint32), the planes one after the other

A plane holds the k-th byte of one field of all rows. The exponents of numbers of one kind are alike and shrink to a
tenth when they stand together, their last bits are noise: a plane that does not shrink is stored as it is, so that
reading it stays a copy. A plane that takes fewer bytes than it holds is a zlib stream.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


MAGIC = b"gradguard rows\x001"
HEAD = struct.Struct("<16sII")
_SAMPLE = 1 << 14  # bytes of a plane that tell whether it shrinks
_LEVEL = 6  # 9 takes twelve times as long, for one part in 250


class Plane(NamedTuple):
    """One byte of one field.

    Args:
        field: name of it.
        byte: which of its bytes.
        width: values a row.
    """

    field: str
    byte: int
    width: int


def planes_of(dtype: np.dtype[np.void]) -> list[Plane]:
    """Return the planes of rows, in the order of their bytes.

    Example:
        >>> for plane in planes_of(np.dtype([("step", "<u2"), ("hits", "u1", (3,))])):
        ...     print(plane)
        Plane(field='step', byte=0, width=1)
        Plane(field='step', byte=1, width=1)
        Plane(field='hits', byte=0, width=3)
    """
    planes = []
    for name in dtype.names or ():
        size = dtype[name].base.itemsize
        planes += [Plane(name, byte, dtype[name].itemsize // size) for byte in range(size)]
    return planes


def pack(rows: npt.NDArray[np.void]) -> bytes:
    """Return a chunk's rows as the text of a packed file.

    Args:
        rows: (N,) structured array without objects and without gaps.
    """
    parts: list[Any] = []
    for name in rows.dtype.names or ():
        field = np.ascontiguousarray(rows[name]).reshape(-1)
        values = field.view(np.uint8).reshape(-1, field.itemsize)
        parts += [_squeezed(values[:, byte].tobytes()) for byte in range(field.itemsize)]
    head = HEAD.pack(MAGIC, len(rows), len(parts))
    return b"".join([head, np.array([len(part) for part in parts], dtype="<u4").tobytes(), *parts])


def _squeezed(plane: bytes) -> bytes:
    sample = plane[:_SAMPLE]
    if len(plane) > 2 * _SAMPLE and len(zlib.compress(sample, 1)) > 0.95 * len(sample):
        return plane
    packed = zlib.compress(plane, _LEVEL)
    return packed if len(packed) < len(plane) else plane
