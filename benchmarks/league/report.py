"""python -m benchmarks.league.report RUNS...: put tables and verdict into the report and draw its picture."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.league.plot import draw
from benchmarks.league.run import Run, load
from benchmarks.league.tables import tasks_of, to_markdown
from benchmarks.league.verdict import summary


HERE = Path(__file__).parent
MARKED = re.compile(r"<!-- begin (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", re.DOTALL)


def main(
    files: Annotated[list[Path], typer.Argument(help="Files that --json wrote.")],
    report: Annotated[Path, typer.Option(help="The report; what stands between its markers is replaced.")] = HERE
    / "REPORT.md",
) -> None:
    """Rebuild the tables and the picture of the report from numbers alone."""
    runs = [run for file in files for run in load(file.read_bytes())]
    text = fill(report.read_text(encoding="utf-8"), runs)
    draft = report.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, report)
    draw(runs, report.parent / "league.png")


def fill(text: str, runs: list[Run]) -> str:
    """Return the report with its tables; what was not run is left as it was.

    Raises:
        ValueError: a table has no place in the report.
    """
    parts = {task: to_markdown(runs, task) for task in tasks_of(runs)}
    parts["verdict"] = "```\n" + "\n".join(summary(runs)) + "\n```\n"
    missing = sorted(parts.keys() - {match["name"] for match in MARKED.finditer(text)})
    if missing:
        raise ValueError(
            f"the report has no place for {', '.join(missing)}: add <!-- begin NAME --> and <!-- end NAME -->"
        )

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- begin {name} -->\n{parts[name]}<!-- end {name} -->" if name in parts else match[0]

    return MARKED.sub(put, text)


if __name__ == "__main__":
    typer.run(main)
