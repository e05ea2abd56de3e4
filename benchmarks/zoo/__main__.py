"""python -m benchmarks.zoo: train the zoo, print the tables, write the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.zoo.catalogue import choose
from benchmarks.zoo.grid import to_markdown, to_table
from benchmarks.zoo.pool import run_all
from benchmarks.zoo.repair.attempt import attempt_by_id
from benchmarks.zoo.repair.attempt import dump as dump_attempts
from benchmarks.zoo.repair.tabulate import grids as repair_grids
from benchmarks.zoo.result import dump, run_by_id
from benchmarks.zoo.tables import show
from benchmarks.zoo.tabulate import grids
from gradguard.policy.load import load_policy


T = TypeVar("T")
WIDE = ("matrix", "healthy", "rivals")  # tables for the report


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of each set-up, from --first-seed.")] = 1,
    first_seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each on one thread.")] = 2,
    only: Annotated[str, typer.Option(help="Ids, patterns or groups, with commas: F01,H*,transient,heldout.")] = "",
    policy: Annotated[str, typer.Option(help="Policy of the guard: a preset or a file.")] = "default",
    rivals: Annotated[bool, typer.Option(help="Let the rule sets of others judge the same runs.")] = True,
    repair: Annotated[bool, typer.Option("--repair", help="Let all arms tend the runs: who repairs what?")] = False,
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
    started = time.perf_counter()
    if repair:
        attempts = [own for tried in _run(console, partial(attempt_by_id, policy=policy), tasks, jobs) for own in tried]
        numbers, tables, wide = dump_attempts(attempts), repair_grids(attempts, has_titles=markdown), ()
    else:
        results = _run(console, partial(run_by_id, policy=policy, with_rivals=rivals), tasks, jobs)
        numbers, tables, wide = dump(results), grids(results), WIDE
        if not markdown:
            show(console, results)
    if out is not None:
        out.write_bytes(numbers)
    for grid in tables:
        if markdown:
            print(to_markdown(grid))
        elif grid.name.removeprefix("heldout-") not in wide:
            console.print(to_table(grid))
    console.print(f"{len(tasks)} set-ups in {(time.perf_counter() - started) / 60:.1f} minutes")


def _run(console: Console, job: Callable[[str, int], T], tasks: Sequence[tuple[str, int]], jobs: int) -> list[T]:
    """Return what a job makes of every task, in their order, behind a progress bar."""
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    results: dict[tuple[str, int], T] = {}
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(tasks))
        for key, result in run_all(job, tasks, jobs):
            results[key] = result
            bar.update(task, advance=1, description=key[0])
    return [results[key] for key in tasks]


if __name__ == "__main__":
    typer.run(main)
