"""Which cells are measured, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.overhead import contenders, optimizers, workloads
from benchmarks.overhead.contenders import ANCHORS, CONTENDERS, CORE, Contender
from benchmarks.overhead.workloads import WORKLOADS, Workload


FAST = ("adamw-foreach", "adamw-fused")
EVERY = tuple(optimizers.OPTIMIZERS)


@dataclass(frozen=True)
class Job:
    """A cell to measure.

    Args:
        workload: what is trained.
        optimizer: name in `OPTIMIZERS`.
        contenders: who takes part.
        seconds: for the rounds.
    """

    workload: Workload
    optimizer: str
    contenders: tuple[Contender, ...]
    seconds: float


# Workload, optimizers, seconds a cell. Everybody takes part under the last optimizer, the core under the others.
STANDARD: tuple[tuple[str, Sequence[str], float], ...] = (
    ("mlp-4", FAST, 3.0),
    ("mlp-40", EVERY, 4.0),
    ("mlp-200", FAST, 6.0),
    ("mlp-2000", FAST, 14.0),
    ("conv", FAST[1:], 8.0),
    ("gpt-4-layers", FAST[1:], 10.0),
    ("gpt2-124m", FAST[1:], 20.0),
)
LEFT_OUT = {("mlp-2000", "wandb")}  # takes seconds a step
QUICK: tuple[tuple[str, Sequence[str], float], ...] = (
    ("mlp-4", FAST[1:], 2.0),
    ("mlp-40", FAST[1:], 5.0),
    ("mlp-200", FAST[1:], 5.0),
    ("gpt2-124m", FAST[1:], 12.0),
)


def standard(is_quick: bool = False) -> list[Job]:
    """Return the cells of a run that was asked for nothing in particular."""
    jobs = []
    for name, names, seconds in QUICK if is_quick else STANDARD:
        for optimizer in names:
            is_full = optimizer == names[-1] and not is_quick
            entrants = contenders.choose(() if is_full else CORE)
            kept = tuple(contender for contender in entrants if (name, contender.name) not in LEFT_OUT)
            jobs.append(Job(WORKLOADS[name], optimizer, kept, seconds))
    return jobs


def product(workload: list[str], optimizer: list[str], guards: list[str], seconds: float) -> list[Job]:
    """Return every combination of what was asked for; nothing asked of a kind means all of it.

    Raises:
        ValueError: a name is unknown.
    """
    entrants = tuple(contenders.choose(guards))
    return [
        Job(each, name, entrants, seconds)
        for each in workloads.choose(workload)
        for name in optimizers.choose(optimizer)
    ]


def with_memory(jobs: Sequence[Job]) -> list[tuple[str, str, str]]:
    """Return (workload, optimizer, contender) for each process whose peak of memory is measured."""
    last = {job.workload.name: job for job in jobs if job.workload.name in ("mlp-40", "gpt2-124m")}
    names = (*ANCHORS, "observe", "default")
    return [
        (name, job.optimizer, each)
        for name, job in last.items()
        for each in names
        if CONTENDERS[each] in job.contenders
    ]
