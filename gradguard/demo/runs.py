"""The runs of the demo: a small GPT, trained clean, with faults, or with the same faults and a guard."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import gradguard
from gradguard.demo.model import GPT
from gradguard.demo.one_thread import one_thread
from gradguard.demo.text import VOCABULARY, batches, load_tokens
from gradguard.errors import TrainingStopped
from gradguard.faults import Fault, Injected, Injector, inject


CONTEXT = 32
WIDTH = 64
BATCH_SIZE = 16
PEAK_LEARNING_RATE = 3e-3
BETAS = (0.9, 0.95)
WARMUP_STEPS = 60  # with 20, some seeds have a gradient spike of their own in the clean run
NUM_HELD_OUT = 128  # pieces of held-out text that a run is judged by

OnStep = Callable[[int, float, Sequence[str]], None]  # step, loss, what happened at it


@dataclass(frozen=True)
class Run:
    """What one run came to.

    Args:
        losses: training loss of every step.
        held_out: mean loss on held-out text at the end.
        injected: the faults that struck.
        stopped: why the guard ended the run early, or "".
        recorded_in: the guard's run directory; None without a guard.
    """

    losses: tuple[float, ...]
    held_out: float
    injected: tuple[Injected, ...] = ()
    stopped: str = ""
    recorded_in: Path | None = None


def plan_faults(num_steps: int) -> tuple[Fault, ...]:
    """Return what goes wrong in a run of so many steps: a learning rate, a batch and a weight.

    The model takes bytes, which cannot be NaN: the batch is spoiled where it is first a floating tensor, at the input
    of the first block.

    Example:
        >>> [fault.describe() for fault in plan_faults(300)]
        ['lr x 300', 'NaN in batch', 'bit flip in weight']
    """
    return (
        Fault("scale", "lr", at=num_steps // 4, factor=300.0),
        Fault("nan", "batch", at=num_steps // 2, module="blocks.0"),
        Fault("bitflip", "weight", at=num_steps * 3 // 4, parameters="blocks.2.mlp.0.weight"),
    )


def train(
    num_steps: int,
    seed: int,
    faults: tuple[Fault, ...] = (),
    run_dir: Path | None = None,
    on_step: OnStep = lambda step, loss, news: None,
) -> Run:
    """Train the small GPT once; runs with the same seed start from the same weights and see the same batches.

    Args:
        num_steps: optimizer steps.
        seed: of the weights, the order of the data, and the entries that the faults strike.
        faults: what goes wrong.
        run_dir: where the guard keeps its record; None trains without a guard.
        on_step: called after every step with its number (0-based), its loss, and the faults and interventions at it.
    """
    torch.manual_seed(seed)
    model = GPT(VOCABULARY, CONTEXT, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=BETAS, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, num_steps))
    tokens, held_out = load_tokens()
    loader = batches(tokens, BATCH_SIZE, CONTEXT, seed)
    losses: list[float] = []
    stopped = ""

    guard = None if run_dir is None else gradguard.attach(model, optimizer, run_dir=run_dir)
    with one_thread(), inject(model, optimizer, faults, seed=seed) as injector, guard or nullcontext():
        try:
            for step in range(num_steps):
                inputs, targets = next(loader)
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                if guard is not None:
                    guard.observe(loss)
                optimizer.step()
                scheduler.step()
                losses.append(loss.item())
                on_step(step, losses[-1], _news(step, injector, guard))
        except TrainingStopped as error:
            stopped = str(error)
    return Run(
        losses=tuple(losses),
        held_out=evaluate(model, held_out),
        injected=tuple(injector.log),
        stopped=stopped,
        recorded_in=None if guard is None or guard.run_dir is None else Path(guard.run_dir),
    )


def _news(step: int, injector: Injector, guard: gradguard.Guard | None) -> list[str]:
    lines = [f"fault: {entry.fault.describe()}" for entry in injector.log if entry.step == step]
    if guard is not None:
        lines += [f"{done.diagnosis}: {done.change.summary}" for done in guard.last.interventions]
    return lines


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Return the share of the peak learning rate: a linear warm-up, then a cosine down to a tenth.

    Example:
        >>> [round(learning_rate_factor(step, 300), 2) for step in (0, 59, 150, 300)]
        [0.02, 0.92, 0.55, 0.1]
    """
    cosine = (1 + math.cos(math.pi * step / num_steps)) / 2
    return min(1.0, (step + 1) / WARMUP_STEPS) * (0.1 + 0.9 * cosine)


@torch.no_grad()
def evaluate(model: GPT, held_out: torch.Tensor) -> float:
    """Return the mean loss over fixed pieces of the held-out text."""
    inputs, targets = next(batches(held_out, NUM_HELD_OUT, CONTEXT, seed=0))
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
