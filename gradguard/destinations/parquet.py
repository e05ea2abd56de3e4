"""Parquet: one file a table, typed and compressed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradguard.audit.read import Run
from gradguard.export.destination import DESTINATIONS, Destination
from gradguard.export.table import Column, Table
from gradguard.schemas.form import schema_id


ROW_GROUP_BYTES = 32 * 1024 * 1024


@DESTINATIONS.register
class Parquet(Destination):
    """NaN and infinity are themselves, and null stands where a value is missing."""

    name = "parquet"
    what = "One .parquet file a table, with types."
    needs = "pyarrow.parquet"
    extra = "parquet"

    def file_name(self, table: str) -> str:
        """Return the name of a table's file."""
        return f"{table}.parquet"

    def write(self, path: Path, tables: Sequence[Table], run: Run) -> None:
        """Write one table, a row group a block."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        (table,) = tables
        metadata = {"gradguard.schema": schema_id(table.name), "gradguard.run_id": str(run.info.get("run_id"))}
        schema = pa.schema(
            [pa.field(column.name, _type(column), nullable=column.is_optional) for column in table.columns], metadata
        )
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for block in table.blocks(ROW_GROUP_BYTES):
                arrays = [_array(column, values) for column, values in zip(table.columns, block, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _type(column: Column) -> Any:
    import pyarrow as pa

    types = {"int64": pa.int64, "float64": pa.float64, "float32": pa.float32, "bool": pa.bool_, "text": pa.string}
    return types[column.kind]()


def _array(column: Column, values: Any) -> Any:
    import pyarrow as pa

    if column.kind == "text":
        # What is no text in UTF-8, such as half of a surrogate pair, is escaped.
        valid = [None if value is None else value.encode("utf-8", "backslashreplace").decode() for value in values]
        return pa.array(valid, type=_type(column))
    mask = np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None
    return pa.array(np.ascontiguousarray(np.ma.getdata(values)), type=_type(column), mask=mask)
