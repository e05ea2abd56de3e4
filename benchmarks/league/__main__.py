"""python -m benchmarks.league: run the league, print a table a task, write the numbers and the picture."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.league.entrants import ENTRANTS
from benchmarks.league.plan import plan
from benchmarks.league.pool import run_all
from benchmarks.league.run import dump, load
from benchmarks.league.tables import NOTES, tasks_of, to_table
from benchmarks.league.tasks import NUM_STEPS
from benchmarks.league.verdict import clean_pairs, summary
from gradguard.policy.load import load_policy


QUICK_STEPS = 10


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each cell, from --first-seed.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each on one thread.")] = 1,
    only: Annotated[str, typer.Option(help="With commas: TASK/CONDITION/ENTRANT with wildcards, or one of them.")] = "",
    policy: Annotated[list[str] | None, typer.Option(help="A further policy file that takes part.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"One seed, {QUICK_STEPS} steps: whether it runs.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="File for the numbers, kept up to date all along.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Take over the runs that the file holds already.")] = False,
    plot: Annotated[Path | None, typer.Option(help="File for the picture.")] = None,
) -> None:
    """Train every model in every condition under every guard, and say who ends up where."""
    console = Console()
    policies = policy or []
    try:
        for name in policies:
            load_policy(name)
        chosen = range(first_seed, first_seed + (1 if quick else seeds))
        tasks = plan(chosen, [pattern for pattern in only.split(",") if pattern], policies)
    except ValueError as error:  # a PolicyError is one too
        raise typer.BadParameter(str(error)) from error
    for entrant in ENTRANTS.values():
        if not entrant.is_here:
            console.print(f"{entrant.title} stays away: pip install {entrant.package}")
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    steps = QUICK_STEPS if quick else NUM_STEPS
    known = load(out.read_bytes()) if resume and out is not None and out.exists() else []
    runs = [run for run in known if run.steps == steps]
    done = {run.key for run in runs}
    order = {key: place for place, key in enumerate(tasks)}
    started = time.perf_counter()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(tasks), completed=len(done & order.keys()))
        for run in run_all([key for key in tasks if key not in done], steps, jobs):
            runs.append(run)
            runs.sort(key=lambda own: order.get(own.key, -1))  # those that were not asked for stay, in front
            if out is not None:
                _write(out, dump(runs))
            bar.update(task, advance=1, description=f"{run.task} {run.condition} {run.entrant}")
    if plot is not None:
        from benchmarks.league.plot import draw  # matplotlib is only needed here

        draw(runs, plot)
    for name in tasks_of(runs):
        console.print(to_table(runs, name))
    for line in (*NOTES, *summary(runs)):
        console.print(line, highlight=False)
    console.print(f"{len(runs)} runs in {(time.perf_counter() - started) / 60:.1f} minutes", highlight=False)
    same, pairs = clean_pairs(runs)
    if same < pairs:
        raise typer.Exit(1)


def _write(path: Path, data: bytes) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_bytes(data)
    os.replace(draft, path)


if __name__ == "__main__":
    typer.run(main)
