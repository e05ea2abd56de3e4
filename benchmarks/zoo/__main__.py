"""python -m benchmarks.zoo: train the zoo, print the tables, write the numbers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.zoo.catalogue import choose
from benchmarks.zoo.grid import to_markdown, to_table
from benchmarks.zoo.pool import run_all
from benchmarks.zoo.result import dump
from benchmarks.zoo.tables import show
from benchmarks.zoo.tabulate import grids
from gradguard.policy.load import load_policy


WIDE = ("matrix", "healthy", "rivals")  # tables for the report


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of each set-up, from --first-seed.")] = 1,
    first_seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each on one thread.")] = 2,
    only: Annotated[str, typer.Option(help="Ids, patterns or groups, with commas: F01,H*,transient,heldout.")] = "",
    policy: Annotated[str, typer.Option(help="Policy of the guard: a preset or a file.")] = "default",
    rivals: Annotated[bool, typer.Option(help="Let the rule sets of others judge the same runs.")] = True,
    out: Annotated[Path | None, typer.Option("--json", help="File for the numbers.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables of the report as markdown.")] = False,
) -> None:
    """Train every chosen set-up without and with the guard, and say what the guard, and others, found and did."""
    console = Console()
    try:
        setups = choose([pattern for pattern in only.split(",") if pattern])
        load_policy(policy)
    except ValueError as error:  # a PolicyError is one too
        raise typer.BadParameter(str(error)) from error
    tasks = [(setup.id, seed) for setup in setups for seed in range(first_seed, first_seed + seeds)]
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    results = []
    started = time.perf_counter()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(tasks))
        for result in run_all(tasks, policy, jobs, rivals):
            results.append(result)
            bar.update(task, advance=1, description=result.id)
    order = {key: place for place, key in enumerate(tasks)}
    results.sort(key=lambda result: order[result.id, result.seed])
    if out is not None:
        out.write_bytes(dump(results))
    if markdown:
        for grid in grids(results):
            print(to_markdown(grid))
    else:
        show(console, results)
        for grid in grids(results):
            if grid.name.removeprefix("heldout-") not in WIDE:
                console.print(to_table(grid))
    trained = sum(sum(result.seconds) for result in results)
    minutes = (time.perf_counter() - started) / 60
    console.print(f"{len(tasks)} set-ups in {minutes:.1f} minutes, {trained / 60:.1f} of them in two training loops")


if __name__ == "__main__":
    typer.run(main)
