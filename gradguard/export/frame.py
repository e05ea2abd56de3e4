"""A table of a run as a data frame of pandas or polars, whichever is installed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gradguard.audit.read import Run
from gradguard.errors import UsageError, did_you_mean
from gradguard.export.table import Column, Table
from gradguard.export.tables import table_of


LIBRARIES = ("pandas", "polars")  # in the order in which they are looked for


def frame_of(run: Run, table: str, library: str | None) -> Any:
    """Return a table as a frame; see `Run.frame`."""
    wanted = _library(library)
    module = importlib.import_module(wanted)
    read = table_of(run, table)
    block = read.rows(0, read.num_rows) if read.num_rows else [[] for _ in read.columns]
    make = _pandas if wanted == "pandas" else _polars
    return make(module, read, block)


def _library(asked: str | None) -> str:
    if asked is not None and asked not in LIBRARIES:
        raise UsageError(f"unknown library {asked!r}{did_you_mean(asked, LIBRARIES)}")
    for name in LIBRARIES if asked is None else (asked,):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return name
    needed = " or ".join(LIBRARIES) if asked is None else asked
    raise UsageError(
        f"a frame needs {needed}, which is not installed; pip install {needed.replace(' or ', '  # or: ')}"
    )


def _pandas(pandas: Any, table: Table, block: list[Any]) -> Any:
    """NaN stays NaN, and what is missing is NA: columns that may miss values have pandas' nullable types."""

    def series(column: Column, values: Any) -> Any:
        if column.kind == "text":
            return pandas.array(values, dtype="string")
        numbers = np.asarray(np.ma.getdata(values), dtype=column.kind)
        if not column.is_optional:
            return numbers
        kinds = {"float": pandas.arrays.FloatingArray, "int": pandas.arrays.IntegerArray}
        kind = kinds["float" if column.kind.startswith("float") else "int"]
        return kind(numbers, np.array(np.ma.getmaskarray(np.ma.asarray(values)), dtype=bool).reshape(len(numbers)))

    columns = {column.name: series(column, values) for column, values in zip(table.columns, block, strict=True)}
    return pandas.DataFrame(columns)


def _polars(polars: Any, table: Table, block: list[Any]) -> Any:
    """NaN stays NaN, and what is missing is null."""

    def series(column: Column, values: Any) -> Any:
        if column.kind == "text":
            return polars.Series(column.name, values, dtype=polars.String)
        numbers = np.asarray(np.ma.getdata(values), dtype=column.kind)
        made = polars.Series(column.name, np.ascontiguousarray(numbers))
        if np.ma.isMaskedArray(values):
            is_there = polars.Series("", ~np.ma.getmaskarray(values))
            made = made.to_frame().select(polars.when(is_there).then(polars.col(column.name)))[column.name]
        return made

    return polars.DataFrame([series(column, values) for column, values in zip(table.columns, block, strict=True)])
