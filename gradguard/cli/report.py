"""`gradguard report RUN...`: one page about one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradguard.audit.headline import plural
from gradguard.cli.render import console, facts, text
from gradguard.report.write import write_report


def report(
    runs: Annotated[list[Path], typer.Argument(help="The run directories; several are shown side by side.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
) -> None:
    """Write one page about runs that opens in any browser, offline.

    An earlier report of the same name is replaced; no other file is. Needs plotly, which the extra "report" brings.
    """
    written = write_report(runs, output, name)
    out = console()
    out.print(facts([(run["title"], run["headline"]) for run in written.runs]))
    out.print()
    number = plural(len(written.runs), "run")
    out.print(text(f"{written.path}: {number}, {written.num_bytes / 1e6:.1f} MB", style="bold"), soft_wrap=True)
    out.print(text("Open it in a browser; it needs no network."))
