"""python -m benchmarks.zoo.repair.report RESULTS...: the tables of REPAIR.md and its picture, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.zoo.repair import bars
from benchmarks.zoo.repair.attempt import load
from benchmarks.zoo.repair.tabulate import grids
from benchmarks.zoo.report import HERE, write


def main(
    files: Annotated[list[Path], typer.Argument(help="Files that --repair --json wrote; later ones are added.")],
    report: Annotated[Path, typer.Option(help="The report; what stands between its markers is replaced.")] = HERE
    / "REPAIR.md",
) -> None:
    """Rebuild every table and the picture of the report from numbers alone."""
    attempts = [attempt for file in files for attempt in load(file.read_bytes())]
    write(report, grids(attempts))
    picture = report.parent / "repair.png"
    bars.draw(attempts, picture)
    print(picture)


if __name__ == "__main__":
    typer.run(main)
