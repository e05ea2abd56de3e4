"""`gradguard export RUN --to KIND`: what was recorded, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradguard.audit.headline import plural
from gradguard.audit.read import read_run
from gradguard.cli.render import console, table, text
from gradguard.export.destination import check_folder, destination, write_tables
from gradguard.export.per_step import Statistics
from gradguard.export.tables import MAKERS, check_names, table_of


def export(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    to: Annotated[str, typer.Option(help="csv, jsonl, parquet or tensorboard.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write to; RUN-KIND here if not given.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--table", help=f"Which tables, of {', '.join(MAKERS)}; all that have rows if not given."),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Of the statistics keep every so many steps, and all at which something happened."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Export what was recorded as CSV, JSON lines, Parquet or TensorBoard.

    Tables: statistics (a row a step), gradients, activations, updates (a row
    a probe and layer), interventions (with their outcome, and what was not
    done) and events. `gradguard schema TABLE` says what their columns mean.
    NaN and infinity survive: by name in CSV and JSON, as numbers in Parquet
    and TensorBoard; a missing value is empty or null.

    Exit code 0: it is written; 2: nothing was written, and why.
    """
    kind = destination(to)
    check_names(only or [])
    kind.check()
    if output is not None:
        check_folder(output)
    read = read_run(run, name)
    num_steps = read.statistics.num_steps
    if every is None:
        every = max(1, num_steps // kind.most_steps) if kind.most_steps else 1
    tables = [table_of(read, wanted, every) for wanted in (only or MAKERS)]
    tables = [one for one in tables if one.num_rows or only or one.name == Statistics.name]
    folder = output or Path(f"{read.path.resolve().name}-{kind.name}")
    files = write_tables(kind, folder, tables, read, force)
    out = console()
    shown = table("", ["file", "table", "rows", "size"], right=frozenset({"rows", "size"}))
    for path, members in files:
        for index, member in enumerate(members):
            size = "" if index else _size(path.stat().st_size)
            shown.add_row(text("" if index else path), member.name, f"{member.num_rows:,}", size)
    out.print(shown)
    if every > 1 and any(one.name == Statistics.name for one in tables):
        kept = f"of the statistics every {every}th step is kept, and all at which something happened"
        out.print(text(f"{kept}: {plural(num_steps, 'step')} in the record; --every 1 keeps all", style="dim"))


def _size(num_bytes: int) -> str:
    """Return a size in its unit.

    Example:
        >>> _size(512), _size(20_480), _size(3_000_000_000)
        ('512 B', '20.5 kB', '3 GB')
    """
    size, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"
