"""A table of a run: named columns with a stated type, read in blocks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt


Kind = Literal["int64", "float64", "float32", "bool", "text"]
Values = npt.NDArray[Any] | Sequence[str | None]
Block = list[Values]  # one per column, all of one length; masked arrays, and None in text, where a value is missing
BYTES: dict[Kind, int] = {"int64": 8, "float64": 8, "float32": 4, "bool": 1, "text": 64}
BLOCK_BYTES = 4 * 1024 * 1024  # of numbers: as Python objects they take about ten times that


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: of the column.
        kind: type of its values; numbers may be NaN or infinite, which is not the same as missing.
        what: what it says, with its unit or range.
        is_optional: values may be missing.
    """

    name: str
    kind: Kind
    what: str
    is_optional: bool = False


class Table(ABC):
    """One table of one run.

    Attributes:
        name: of the table.
        columns: in order.
        num_rows: rows.
    """

    name: str
    columns: tuple[Column, ...]
    num_rows: int

    def blocks(self, num_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
        """Yield all rows in order, in blocks of about so many bytes."""
        row_bytes = sum(BYTES[column.kind] for column in self.columns)
        at_once = max(1, num_bytes // row_bytes)
        for start in range(0, self.num_rows, at_once):
            yield self.rows(start, min(start + at_once, self.num_rows))

    @abstractmethod
    def rows(self, start: int, stop: int) -> Block:
        """Return rows `start` to `stop`."""


def masked(values: npt.NDArray[Any], is_missing: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return values of which some are missing, without a mask where none is."""
    return np.ma.MaskedArray(values, mask=is_missing) if is_missing.any() else values
