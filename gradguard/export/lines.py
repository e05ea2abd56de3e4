"""Rows of tables as lines of text: a template a table, filled row by row, so that a million rows take seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gradguard.export.table import Block, Column, Table


FORMATS = {"int64": "%d", "float64": "%r", "float32": "%.9g", "bool": "%s", "text": "%s"}  # all read back to the same


class Lines:
    """Writes the rows of a table by a template.

    Args:
        table: whose rows.
        template: of a line: for each column its value between what stands around it, % doubled.
        missing: what stands for a value that is missing.
        nonfinite: what stands for NaN, infinity and minus infinity.
        text: how a text is written.
    """

    def __init__(
        self,
        table: Table,
        template: Callable[[Column, str], str],
        ends: tuple[str, str, str],
        missing: str,
        nonfinite: tuple[str, str, str],
        text: Callable[[str], str],
    ) -> None:
        self.table = table
        start, between, end = ends
        formats = [FORMATS[column.kind] for column in table.columns]
        self._plain = _join(table.columns, formats, template, ends)
        self._any = start + between.join(template(column, "%s") for column in table.columns) + end
        self._formats = formats
        self._missing = missing
        self._nan, self._inf, self._minus_inf = nonfinite
        self._text = text

    def __iter__(self) -> Iterator[str]:
        """Yield blocks of lines."""
        for block in self.table.blocks():
            yield "".join(self._lines(block))

    def _lines(self, block: Block) -> Iterator[str]:
        columns = [self._cells(column, values) for column, values in zip(self.table.columns, block, strict=True)]
        is_plain = _plain_rows(self.table.columns, block)
        for row, plain in zip(zip(*columns, strict=True), is_plain, strict=True):
            yield self._plain % row if plain else self._any % tuple(map(self._cell, row, self._formats))

    def _cells(self, column: Column, values: Any) -> list[Any]:
        if column.kind == "text":
            return [None if value is None else self._text(value) for value in values]
        if column.kind == "bool":
            return ["true" if value else "false" for value in values.tolist()]
        return values.tolist()  # type: ignore[no-any-return]

    def _cell(self, value: Any, how: str) -> str:
        if value is None:
            return self._missing
        if isinstance(value, float) and not math.isfinite(value):
            return self._nan if math.isnan(value) else self._inf if value > 0 else self._minus_inf
        return str(how % value)


def _join(
    columns: Sequence[Column],
    formats: Sequence[str],
    template: Callable[[Column, str], str],
    ends: tuple[str, str, str],
) -> str:
    start, between, end = ends
    return start + between.join(template(column, how) for column, how in zip(columns, formats, strict=True)) + end


def _plain_rows(columns: Sequence[Column], block: Block) -> list[bool]:
    """Return which rows have a value in every column, and a finite one where it is a number."""
    is_plain = np.ones(len(block[0]), dtype=bool)
    for column, values in zip(columns, block, strict=True):
        if column.kind == "text":
            if column.is_optional:
                is_plain &= np.array([value is not None for value in values], dtype=bool)
            continue
        if np.ma.isMaskedArray(values):
            is_plain &= ~np.ma.getmaskarray(values)
        if column.kind in ("float32", "float64"):
            is_plain &= np.isfinite(np.ma.getdata(np.ma.asarray(values)))
    return [bool(plain) for plain in is_plain]
