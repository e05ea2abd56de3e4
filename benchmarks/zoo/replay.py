"""python -m benchmarks.zoo.replay: record every set-up, replay it by its own policy, and compare to the last letter."""

from __future__ import annotations

import tempfile
import time
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

import gradguard
from benchmarks.zoo.catalogue import ZOO, choose
from benchmarks.zoo.pool import run_all
from benchmarks.zoo.setup import Setup
from gradguard.faults import inject
from gradguard.policy.schema import Policy
from gradguard.replay.backtest import Backtest
from gradguard.replay.difference import compare
from gradguard.replay.recorded import Recorded


class Result(NamedTuple):
    """One guard's run and its replay.

    Args:
        guard: its name.
        num_steps: recorded.
        num_decisions: recorded.
        num_restored: how often the run went back to a snapshot.
        is_exact: the replay gave the same findings and decisions, to the last letter.
        seconds: of the replay.
    """

    guard: str
    num_steps: int
    num_decisions: int
    num_restored: int
    is_exact: bool
    seconds: float


def record(setup: Setup, seed: int, policy: str | Policy, path: Path) -> list[str]:
    """Train a set-up under a policy as its user would, recorded; return the names of its guards."""
    training = setup.make(seed)
    names = [f"turn{index}" for index in range(len(training.turns))]
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # schedulers wonder about steps that were skipped
        faults = inject(training.model, training.turns[0].optimizer, setup.faults, seed=seed)
        stack.enter_context(faults if setup.faults else nullcontext())
        guards = [
            stack.enter_context(gradguard.attach(training.model, turn.optimizer, policy, run_dir=path, name=name))
            for turn, name in zip(training.turns, names, strict=True)
        ]
        try:
            for step in range(setup.steps):
                if setup.poison is not None:
                    setup.poison(training.model, step)
                for turn, guard in zip(training.turns, guards, strict=True):
                    turn.run(step, guard.observe)
        except gradguard.TrainingStopped:
            pass
    return names


def replay(path: Path, name: str) -> Result:
    """Replay one guard's record by its own policy."""
    recorded = Recorded(path, name)
    if recorded.policy is None:
        raise ValueError(f"{path}: the policy of the run cannot be read")
    started = time.perf_counter()
    replayed = Backtest(recorded, recorded.policy).run()
    seconds = time.perf_counter() - started
    comparison = compare(recorded, recorded.policy, replayed)
    num_decisions = len(recorded.run.interventions) + len(recorded.run.withheld)
    num_restored = sum(note.kind == "roll_back" for note in recorded.notes or ())
    return Result(name, recorded.num_rows, num_decisions, num_restored, comparison.is_exact, seconds)


def replay_by_id(id: str, seed: int, policy: str = "default") -> list[Result]:
    """Record a set-up and replay it."""
    with tempfile.TemporaryDirectory() as folder:
        return [replay(Path(folder) / "run", name) for name in record(ZOO[id], seed, policy, Path(folder) / "run")]


def main(
    only: Annotated[str, typer.Option(help="Ids, patterns or groups, with commas: F01,H*,transient,heldout.")] = "",
    policies: Annotated[str, typer.Option(help="Policies, with commas: presets or files.")] = "default",
    seed: Annotated[int, typer.Option(help="Of the set-ups.")] = 0,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each on one thread.")] = 2,
) -> None:
    """Replay the zoo; exit with 1 when a replay is not what was recorded."""
    from functools import partial

    console = Console()
    is_exact = True
    for policy in policies.split(","):
        tasks = [(setup.id, seed) for setup in choose([pattern for pattern in only.split(",") if pattern])]
        results = [
            (id, result)
            for (id, _), own in run_all(partial(replay_by_id, policy=policy), tasks, jobs)
            for result in own
        ]
        for id, result in results:
            if not result.is_exact:
                console.print(f"{policy}: {id} {result.guard} is not what was recorded")
        steps, seconds = sum(r.num_steps for _, r in results), sum(r.seconds for _, r in results)
        exact = sum(r.is_exact for _, r in results)
        console.print(
            f"{policy}: {exact} of {len(results)} runs replayed exactly: {steps:,} steps, "
            f"{sum(r.num_decisions for _, r in results):,} decisions, "
            f"{sum(r.num_restored for _, r in results)} rollbacks; {1e6 * seconds / steps:.0f} us a step"
        )
        is_exact &= exact == len(results)
    if not is_exact:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
