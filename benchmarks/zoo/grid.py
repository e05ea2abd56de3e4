"""A table that a terminal and a report can show."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Grid:
    """A table.

    Args:
        name: of the table's place in the report.
        title: one line.
        columns: their heads; the first `num_words` hold words, the others numbers.
        rows: as long as the columns.
        notes: lines below it.
        num_words: columns that are aligned to the left.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    num_words: int = 1


def to_table(grid: Grid) -> Table:
    """Return it for a terminal."""
    table = Table(
        title=grid.title,
        title_justify="left",
        title_style="bold",
        caption="\n".join(grid.notes) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        row_styles=("", "on grey7"),
        expand=False,
    )
    for index, column in enumerate(grid.columns):
        table.add_column(escape(column), justify="left" if index < grid.num_words else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*map(escape, row))
    return table


def to_markdown(grid: Grid) -> str:
    r"""Return it for a report; a pipe in a cell is kept from ending it.

    Example:
        >>> print(to_markdown(Grid("x", "", ("id", "n"), (("a|b", "1"),))), end="")
        | id | n |
        | :--- | ---: |
        | a\|b | 1 |
    """
    rule = tuple(":---" if index < grid.num_words else "---:" for index in range(len(grid.columns)))
    lines = [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        for row in (grid.columns, rule, *grid.rows)
    ]
    notes = "".join(f"\n* {note}" for note in grid.notes)
    return "\n".join(lines) + "\n" + (f"{notes}\n" if notes else "")
