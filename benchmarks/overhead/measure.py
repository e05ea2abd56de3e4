"""One cell: a workload under an optimizer, with every contender taking its turn in every round."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from benchmarks.overhead.arena import Arena
from benchmarks.overhead.cell import Cell
from benchmarks.overhead.contenders import ANCHORS, CONTENDERS, Contender, warm_up
from benchmarks.overhead.entrant import Entrant
from benchmarks.overhead.reads import Read, read_speed
from benchmarks.overhead.rivals import is_installed
from benchmarks.overhead.samples import compare
from benchmarks.overhead.workloads import Workload


MAX_ROUNDS = 400
NOISY_SHARE = 0.2  # of the time, for each contender that has a pass of its own
PATIENCE = 2.0  # times the seconds asked for, after which even `min_rounds` are not waited for

OnRound = Callable[[float], None]  # takes the share of the cell that is done


def measure(
    workload: Workload,
    optimizer: str,
    contenders: Sequence[Contender],
    *,
    rounds: int | None = None,
    seconds: float = 10.0,
    on_round: OnRound = lambda share: None,
) -> Cell:
    """Let the contenders take turns and return what each took.

    Args:
        workload: what is trained.
        optimizer: name in `OPTIMIZERS`.
        contenders: "bare" and "clip" among them; those that cannot take part are left out and named in the cell.
        rounds: how many; None for as many as fit into `seconds`, but `min_rounds` at least.
        seconds: for the rounds, all contenders together.
        on_round: called after every round.
    """
    skipped = {contender.name: reason for contender in contenders if (reason := reason_to_skip(contender, workload))}
    able = [contender for contender in contenders if contender.name not in skipped]
    quiet = [contender for contender in able if not contender.is_noisy]
    anchors = [CONTENDERS[name] for name in ANCHORS]
    passes = [quiet, *([*anchors, contender] for contender in able if contender.is_noisy)]
    shares = [1.0 - NOISY_SHARE * (len(passes) - 1), *([NOISY_SHARE] * (len(passes) - 1))]
    cells, done = [], 0.0
    for group, part in zip(passes, shares, strict=True):
        turns = Turns(rounds, part * seconds, lambda share, done=done, part=part: on_round(done + part * share))
        cells.append(_measure(workload, optimizer, group, turns))
        done += part
    noisy = {name: cell.timings[name] for cell in cells[1:] for name in cell.timings if CONTENDERS[name].is_noisy}
    held = {name: cell.held[name] for cell in cells for name in cell.timings}
    return replace(cells[0], timings=cells[0].timings | noisy, skipped=skipped, held=held)


@dataclass(frozen=True)
class Turns:
    """How long the contenders take turns.

    Args:
        rounds: how many; None for as many as fit into `seconds`.
        seconds: for all of them.
        on_round: called with the share that is done.
    """

    rounds: int | None
    seconds: float
    on_round: OnRound

    def share(self, done: int, min_rounds: int, start: float) -> float:
        """Return which share of the turns is done after `done` rounds."""
        if self.rounds is not None:
            return done / self.rounds
        elapsed = (time.perf_counter() - start) / self.seconds
        return max(min(elapsed, done / min_rounds), done / MAX_ROUNDS, elapsed / PATIENCE)


def _measure(workload: Workload, optimizer: str, contenders: Sequence[Contender], turns: Turns) -> Cell:
    torch.manual_seed(0)
    with TemporaryDirectory(prefix="overhead-") as folder, ExitStack() as stack, _collecting_apart():
        warm_up()
        arena = Arena(workload, optimizer, Path(folder))
        entrants = []
        for contender in contenders:
            entrants.append(arena.admit(contender))
            stack.callback(entrants[-1].running.close)
        num_rounds = _run(arena, entrants, turns)
        read = read_speed([p.grad for p in entrants[0].setting.params if p.grad is not None])
        return _cell(arena, entrants, num_rounds, read)


def reason_to_skip(contender: Contender, workload: Workload) -> str:
    """Return why a contender cannot take part, "" when it can."""
    if contender.package and not is_installed(contender.package):
        return f"{contender.package} is not installed"
    if contender.needs_backward and workload.draw is None:
        return "this workload has no backward"
    return ""


def _run(arena: Arena, entrants: Sequence[Entrant], turns: Turns) -> int:
    """Let everyone take one turn a round and return the number of rounds."""
    order = Random(0)
    done, start, share = 0, time.perf_counter(), 0.0
    while share < 1.0:
        batch = arena.batch(done)
        for entrant in order.sample(list(entrants), len(entrants)):  # nobody always comes after the same one
            entrant.take_turn(batch)
            if entrant.contender.is_changing:
                arena.refill()
        done += 1
        gc.collect(0)
        share = turns.share(done, arena.workload.min_rounds, start)
        turns.on_round(min(1.0, share))
    return done


@contextmanager
def _collecting_apart() -> Iterator[None]:
    """Keep Python's collector out of the timed parts."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _cell(arena: Arena, entrants: Sequence[Entrant], num_rounds: int, read: Read) -> Cell:
    params = entrants[0].setting.params
    return Cell(
        workload=arena.workload.name,
        optimizer=arena.optimizer,
        num_tensors=len(params),
        num_bytes=sum(param.numel() * param.element_size() for param in params),
        rounds=num_rounds,
        timings=compare(
            {entrant.contender.name: entrant.samples for entrant in entrants},
            {entrant.contender.name: entrant.contender.against for entrant in entrants},
            [entrant.contender.name for entrant in entrants if entrant.contender.is_in_backward],
            {entrant.contender.name: periodic for entrant in entrants if (periodic := entrant.periodic()) is not None},
        ),
        skipped={},
        findings={entrant.contender.name: count for entrant in entrants if (count := entrant.num_findings())},
        refusals={entrant.contender.name: reason for entrant in entrants if (reason := entrant.refusal())},
        held={entrant.contender.name: entrant.held.num_bytes for entrant in entrants},
        read=read,
    )
