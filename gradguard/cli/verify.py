"""`gradguard verify RUN`: is the record complete and as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradguard.audit.headline import plural
from gradguard.audit.verify import verify_run
from gradguard.cli.render import console, text
from gradguard.record.encode import to_json


def verify(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the problems as JSON.")] = False,
) -> None:
    """Check that a record is complete and was not edited.

    Exit code 0: it is; 1: problems were found; 2: not a run directory.
    """
    problems = verify_run(run, name)
    if as_json:
        typer.echo(to_json(problems, indent=2))
    else:
        out = console()
        for problem in problems:
            out.print(text(f"{problem.kind:<10} {problem}"))
        if all(problem.kind == "torn" for problem in problems):
            ending = " but for what the end of the process cut off" if problems else ""
            out.print(text(f"{run}: complete and as it was written{ending}"))
        else:
            out.print(text(f"{run}: {plural(len(problems), 'problem')}", style="bold"))
    if problems:
        raise typer.Exit(1)
