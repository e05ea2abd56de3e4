"""python -m benchmarks.zoo: train the zoo, print the tables, write the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.zoo.catalogue import choose
from benchmarks.zoo.pool import run_all
from benchmarks.zoo.result import dump
from benchmarks.zoo.tables import show
from gradguard.policy.load import load_policy


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of each set-up, from 0.")] = 1,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each on one thread.")] = 2,
    only: Annotated[str, typer.Option(help="Ids, patterns or groups, with commas: F01,H*,transient.")] = "",
    policy: Annotated[str, typer.Option(help="Policy of the guard: a preset or a file.")] = "default",
    out: Annotated[Path | None, typer.Option("--json", help="File for the numbers.")] = None,
) -> None:
    """Train every chosen set-up without and with the guard, and say what the guard found and did."""
    console = Console()
    try:
        setups = choose([pattern for pattern in only.split(",") if pattern])
        load_policy(policy)
    except ValueError as error:  # a PolicyError is one too
        raise typer.BadParameter(str(error)) from error
    tasks = [(setup.id, seed) for setup in setups for seed in range(seeds)]
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(tasks))
        for result in run_all(tasks, policy, jobs):
            results.append(result)
            bar.update(task, advance=1, description=result.id)
    order = {key: place for place, key in enumerate(tasks)}
    results.sort(key=lambda result: order[result.id, result.seed])
    show(console, results)
    if out is not None:
        out.write_bytes(dump(results))


if __name__ == "__main__":
    typer.run(main)
