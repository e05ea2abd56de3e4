"""The tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.overhead.result import Result
from benchmarks.overhead.tabulate import Grid, grids


def show(console: Console, result: Result) -> None:
    """Print the machine and all tables."""
    console.print(", ".join(f"{name} {value}" for name, value in result.environment.items()), highlight=False)
    console.print()
    for grid in grids(result):
        console.print(_table(grid))
        for note in grid.notes:
            console.print(f"  {note}", highlight=False, markup=False)
        console.print()


def _table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", title_style="bold", expand=False)
    for index, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if index < grid.num_words else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*row)
    return table
