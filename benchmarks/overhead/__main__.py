"""python -m benchmarks.overhead: measure, print the tables, write the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from loguru import logger
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from benchmarks.overhead import plan
from benchmarks.overhead.endurance import STRETCH, endure
from benchmarks.overhead.machine import describe_machine
from benchmarks.overhead.markdown import write_markdown
from benchmarks.overhead.measure import measure
from benchmarks.overhead.memory import measure_peak
from benchmarks.overhead.result import Result, dump
from benchmarks.overhead.tables import show
from benchmarks.overhead.targets import judge


SECONDS = 10.0


def main(
    workload: Annotated[str, typer.Option(help="Workloads, with commas: mlp-40,gpt2-124m.")] = "",
    optimizer: Annotated[str, typer.Option(help="Optimizers, with commas: adamw-fused,sgd-plain.")] = "",
    guards: Annotated[str, typer.Option(help="Contenders, with commas: default,zclip; beside bare and clip.")] = "",
    rounds: Annotated[int | None, typer.Option(min=1, help="Of each cell; left out, as many as time allows.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Torch's threads; more than one needs a quiet machine.")] = 1,
    memory: Annotated[bool, typer.Option(help="Peak memory too, in a process for each contender.")] = True,
    long: Annotated[int, typer.Option(min=0, help="Steps of a long run that shows whether anything grows.")] = 0,
    out: Annotated[Path | None, typer.Option("--json", help="File for the numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for the plot (.png, .svg); needs matplotlib.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the tables as markdown.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
) -> None:
    """Measure what a guarded step costs, beside a bare one and beside clip_grad_norm_."""
    console = Console()
    picked = [[name for name in text.split(",") if name] for text in (workload, optimizer, guards)]
    try:
        jobs = plan.product(*picked, seconds=SECONDS / 4 if quick else SECONDS) if any(picked) else plan.standard(quick)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if plot is not None:
        try:
            from benchmarks.overhead.plot import draw
        except ImportError as error:  # said before anything is measured
            raise typer.BadParameter("--plot needs matplotlib: pip install -e '.[bench]'") from error
    torch.set_num_threads(threads)
    logger.remove()
    logger.add(lambda line: None)  # lines are still made, as for a user, but not shown
    peaks = plan.with_memory(jobs) if memory and not quick else []
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        total = sum(job.seconds for job in jobs)
        task = bar.add_task("", total=total)
        cells, before = [], 0.0
        for job in jobs:
            bar.update(task, description=f"{job.workload.name} {job.optimizer}")
            cells.append(
                measure(
                    job.workload,
                    job.optimizer,
                    job.contenders,
                    rounds=rounds,
                    seconds=job.seconds,
                    on_round=lambda share, job=job, before=before: bar.update(
                        task, completed=before + share * job.seconds
                    ),
                )
            )
            before += job.seconds
        found = []
        if peaks:
            task = bar.add_task("peak memory", total=len(peaks))
            for names in peaks:
                found.append(measure_peak(*names))
                bar.advance(task)
        stretches = []
        if long:
            task = bar.add_task(f"{long:,} steps", total=long)
            stretches = endure(long, min(STRETCH, long), on_step=lambda step: bar.update(task, completed=step))
    result = Result(describe_machine(), tuple(cells), tuple(found), tuple(stretches), tuple(judge(cells)))
    show(console, result)
    if out is not None:
        out.write_bytes(dump(result))
    if markdown is not None:
        markdown.write_text(write_markdown(result), encoding="utf-8")
    if plot is not None:
        draw(result, plot)
    if check and not all(verdict.is_met for verdict in result.verdicts):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
