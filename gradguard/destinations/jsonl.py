"""JSON lines: one file a table, one object a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gradguard.audit.read import Run
from gradguard.export.destination import DESTINATIONS, Destination
from gradguard.export.lines import Lines
from gradguard.export.table import Column, Table


@DESTINATIONS.register
class Jsonl(Destination):
    """Strict JSON in ASCII; "NaN", "Infinity" and "-Infinity" as strings, null where a value is missing."""

    name = "jsonl"
    what = "One .jsonl file a table."

    def file_name(self, table: str) -> str:
        """Return the name of a table's file."""
        return f"{table}.jsonl"

    def write(self, path: Path, tables: Sequence[Table], run: Run) -> None:
        """Write one table."""
        (table,) = tables
        nonfinite = ('"NaN"', '"Infinity"', '"-Infinity"')
        lines = Lines(table, _named, ("{", ",", "}\n"), "null", nonfinite, text=json.dumps)
        with open(path, "x", encoding="ascii") as file:
            file.writelines(lines)


def _named(column: Column, value: str) -> str:
    return json.dumps(column.name).replace("%", "%%") + ":" + value
