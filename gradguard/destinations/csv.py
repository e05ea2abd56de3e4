"""Comma-separated values: one file a table, for spreadsheets and everything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradguard.audit.read import Run
from gradguard.export.destination import DESTINATIONS, Destination
from gradguard.export.lines import Lines
from gradguard.export.table import Table
from gradguard.printable import printable


FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for the beginning of a formula


@DESTINATIONS.register
class Csv(Destination):
    """RFC 4180 in UTF-8 with a header; NaN, Infinity and -Infinity by these words, nothing where a value is missing."""

    name = "csv"
    what = "One .csv file a table."

    def file_name(self, table: str) -> str:
        """Return the name of a table's file."""
        return f"{table}.csv"

    def write(self, path: Path, tables: Sequence[Table], run: Run) -> None:
        """Write one table."""
        (table,) = tables
        lines = Lines(
            table, lambda _, value: value, ("", ",", "\r\n"), "", ("NaN", "Infinity", "-Infinity"), text=quoted
        )
        with open(path, "x", encoding="utf-8", newline="") as file:
            file.write(",".join(quoted(column.name) for column in table.columns) + "\r\n")
            file.writelines(lines)


def quoted(text: str) -> str:
    r"""Return a text as a cell that no spreadsheet runs: in quotes, a ' before what looks like a formula.

    What is not printable is written as an escape.

    Example:
        >>> print(quoted("=cmd()"), quoted("a, b"), quoted("x\n"))
        "'=cmd()" "a, b" "x\n"
    """
    shown = printable(text)
    if shown.lstrip().startswith(FORMULA):
        shown = "'" + shown
    return '"' + shown.replace('"', '""') + '"'
