"""python -m benchmarks.preflight: what a pre-flight says of every run of the zoo, before its first step."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gradguard
from benchmarks.zoo.catalogue import choose
from benchmarks.zoo.setup import Setup


@dataclass
class Row:
    """What was found in one set-up.

    Args:
        setup: which.
        seeds: how many were looked at.
        counts: seeds in which each check spoke, by "check (severity)".
        alarms: seeds with a finding at warn or above.
        milliseconds: of one pre-flight, median.
        unseen: what could not be looked at.
    """

    setup: Setup
    seeds: int
    counts: dict[str, int] = field(default_factory=dict)
    alarms: int = 0
    milliseconds: float = 0.0
    unseen: set[str] = field(default_factory=set)


def look(setup: Setup, seeds: int) -> Row:
    """Run the pre-flight of a set-up with seeds from 0 on."""
    row, times = Row(setup, seeds), []
    for seed in range(seeds):
        training = setup.make(seed)
        opening = training.opening
        if opening is None:
            raise ValueError(f"{setup.id} does not say what its first step works on")
        started = time.perf_counter()
        report = gradguard.preflight(opening.model, training.turns[0].optimizer, opening.batch, opening.loss)
        times.append(1e3 * (time.perf_counter() - started))
        for told in {f"{found.check} ({found.severity})" for found in report.findings}:
            row.counts[told] = row.counts.get(told, 0) + 1
        row.alarms += not report.ok
        row.unseen.update(report.unseen)
    row.milliseconds = statistics.median(times)
    return row


def table(rows: list[Row]) -> Table:
    """Return one line a set-up: what was found, in how many seeds."""
    result = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("id", "what it is", "alarms", "found before the first step"):
        result.add_column(name, header_style="dim", justify="right" if name == "alarms" else "left", overflow="fold")
    for row in rows:
        is_right = (row.alarms > 0) == (row.setup.group == "failing")
        found = [told if count == row.seeds else f"{told} {count}/{row.seeds}" for told, count in row.counts.items()]
        style = "" if is_right else "red" if row.setup.group == "healthy" else "yellow"
        alarms = f"{row.alarms}/{row.seeds}"
        result.add_row(row.setup.id, row.setup.title, alarms, ", ".join([*found, *row.unseen]) or "-", style=style)
    return result


def headline(rows: list[Row]) -> str:
    """Return the counts in one sentence."""
    healthy = [row for row in rows if row.setup.group == "healthy"]
    failing = [row for row in rows if row.setup.group == "failing"]
    false = sum(row.alarms for row in healthy)
    caught = sum(row.alarms == row.seeds for row in failing)
    took = statistics.median(row.milliseconds for row in rows)
    return (
        f"false alarms: {false} of {sum(row.seeds for row in healthy)} healthy runs; failing set-ups caught in every "
        f"seed: {caught} of {len(failing)}; a pre-flight takes {took:.0f} ms (median)"
    )


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of each set-up, from 0.")] = 3,
    only: Annotated[str, typer.Option(help="Ids, patterns or groups, with commas: F01,H*,failing.")] = "",
    out: Annotated[Path | None, typer.Option("--json", help="File for the numbers.")] = None,
) -> None:
    """Run the pre-flight of every healthy and failing set-up and print what it finds."""
    torch.set_num_threads(1)
    console = Console()
    try:
        setups = choose([pattern for pattern in only.split(",") if pattern])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    setups = [setup for setup in setups if setup.group != "transient"]  # these begin as their healthy ones do
    rows = [look(setup, seeds) for setup in track(setups, "pre-flights", console=console, transient=True)]
    console.print(table(rows))
    console.print(f"\n{headline(rows)}")
    if out is not None:
        numbers = [{"id": r.setup.id, "seeds": r.seeds, "alarms": r.alarms, "found": r.counts} for r in rows]
        out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
