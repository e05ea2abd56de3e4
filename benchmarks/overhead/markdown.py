"""The tables as a section of a report."""

from __future__ import annotations

from benchmarks.overhead.result import Result
from benchmarks.overhead.tabulate import Grid, grids


def write_markdown(result: Result) -> str:
    """Return the machine and all tables as markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in result.environment.items())
    return "\n\n".join(["## Overhead", f"Measured on: {machine}.", *(_section(grid) for grid in grids(result))]) + "\n"


def _section(grid: Grid) -> str:
    rule = [":---" if index < grid.num_words else "---:" for index in range(len(grid.columns))]
    lines = [_line(grid.columns), _line(rule), *(_line(row) for row in grid.rows)]
    notes = "".join(f"\n* {note}" for note in grid.notes)
    return f"### {grid.title}\n\n" + "\n".join(lines) + ("\n" + notes if notes else "")


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
