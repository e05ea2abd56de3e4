"""python -m benchmarks.zoo.report RESULTS...: put tables into the report and draw its pictures, without training."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.zoo import standing, strips
from benchmarks.zoo.grid import Grid, to_markdown
from benchmarks.zoo.result import Result, load
from benchmarks.zoo.tabulate import grids


HERE = Path(__file__).parent
MARKED = re.compile(r"<!-- begin (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", re.DOTALL)


def main(
    files: Annotated[list[Path], typer.Argument(help="Files that --json wrote; later ones are added to the first.")],
    report: Annotated[Path, typer.Option(help="The report; what stands between its markers is replaced.")] = HERE
    / "REPORT.md",
) -> None:
    """Rebuild every table and picture of the report from numbers alone."""
    results = [result for file in files for result in load(file.read_bytes())]
    write(report, grids(results))
    for path in pictures(results, report.parent):
        print(path)


def write(report: Path, tables: Sequence[Grid]) -> None:
    """Put tables into a report."""
    text = fill(report.read_text(encoding="utf-8"), tables)
    draft = report.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, report)


def fill(text: str, grids: Sequence[Grid]) -> str:
    """Return a report with these tables; what stands there of others is left as it was.

    Raises:
        ValueError: a table has no place in the report.
    """
    tables = {grid.name: to_markdown(grid) for grid in grids}
    places = {match["name"] for match in MARKED.finditer(text)}
    missing = sorted(tables.keys() - places)
    if missing:
        raise ValueError(
            f"the report has no place for {', '.join(missing)}: add <!-- begin NAME --> and <!-- end NAME -->"
        )

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- begin {name} -->\n{tables[name]}<!-- end {name} -->" if name in tables else match[0]

    return MARKED.sub(put, text)


def pictures(results: list[Result], folder: Path) -> list[Path]:
    """Draw the pictures, the held-out runs apart, and return their paths."""
    drawn = []
    for prefix, chosen in (
        ("", [result for result in results if not result.held_out]),
        ("heldout-", [result for result in results if result.held_out]),
    ):
        for name, draw in (("standing", standing.draw), ("strips", strips.draw)):
            if any(result.extremes for result in chosen):
                drawn.append(folder / f"{prefix}{name}.png")
                draw(chosen, drawn[-1])
    return drawn


if __name__ == "__main__":
    typer.run(main)
