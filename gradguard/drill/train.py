"""Trains the drill's model once: clean or struck, without a guard or with one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import gradguard
from gradguard.demo.one_thread import one_thread
from gradguard.drill.model import Classifier, Task
from gradguard.drill.outcome import Run
from gradguard.errors import TrainingStopped
from gradguard.faults import Fault, inject
from gradguard.policy.schema import Policy
from gradguard.records import Intervention


PEAK_LEARNING_RATE = 0.1
MOMENTUM = 0.9
WARMUP_STEPS = 20


@dataclass(frozen=True)
class Watch:
    """The guard of a run.

    Args:
        policy: what it goes by; its parameter patterns fit the model.
        run_dir: where it records.
    """

    policy: Policy
    run_dir: Path


def parameter_names() -> list[str]:
    """Return the names of the model's parameters, as patterns see them."""
    return [name for name, _ in Classifier().named_parameters()]


def train(
    task: Task,
    seed: int,
    faults: Sequence[Fault] = (),
    watch: Watch | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Run:
    """Train once, a step for each batch; runs with the same seed start from the same weights.

    Args:
        task: the data.
        seed: of the weights, and of the entries that the faults strike.
        faults: what goes wrong.
        watch: the guard; None trains without.
        on_step: called after every step.
    """
    torch.manual_seed(seed)
    model = Classifier()
    # Fused, so that a policy with `sync: deferred` is drilled as one.
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK_LEARNING_RATE, momentum=MOMENTUM, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, len(task.batches)))
    stopped = failed = ""
    num_done = 0

    guard = None if watch is None else gradguard.attach(model, optimizer, watch.policy, run_dir=watch.run_dir)
    with one_thread():
        try:
            with inject(model, optimizer, faults, seed=seed), guard or nullcontext():
                for features, symbols, classes in task.batches:
                    optimizer.zero_grad()
                    loss = cross_entropy(model(features, symbols), classes)
                    loss.backward()  # type: ignore[no-untyped-call]
                    if guard is not None:
                        guard.observe(loss)
                    optimizer.step()
                    scheduler.step()
                    num_done += 1
                    on_step()
        except TrainingStopped as error:
            stopped = _why(error, guard)
        except Exception as error:
            # With `on_internal_error: raise` what fails in a plugin ends the run, and the drill tells it.
            if watch is None or watch.policy.on_internal_error != "raise":
                raise
            failed = repr(error)
        held_out = evaluate(model, task)
    recorded_in = None if guard is None or guard.run_dir is None else Path(guard.run_dir)
    return Run(held_out, fingerprint(model, optimizer), num_done, stopped, failed, recorded_in)


def _why(error: TrainingStopped, guard: gradguard.Guard | None) -> str:
    """Return why a guard stopped, without what the error says about a record that a drill need not keep."""
    actions = [record for record in guard.records if isinstance(record, Intervention)] if guard is not None else []
    is_spent = any(action.reason == "gave_up" for action in actions)
    said = error.finding.message if error.finding is not None else str(error)
    return f"The budget of the run is spent. {said}" if is_spent else said


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Return the share of the peak learning rate: a linear warm-up, then a cosine down to a twentieth.

    Example:
        >>> [round(learning_rate_factor(step, 300), 2) for step in (0, 19, 150, 300)]
        [0.05, 0.99, 0.53, 0.05]
    """
    cosine = (1 + math.cos(math.pi * step / num_steps)) / 2
    return min(1.0, (step + 1) / WARMUP_STEPS) * (0.05 + 0.95 * cosine)


@torch.no_grad()
def evaluate(model: Classifier, task: Task) -> float:
    """Return the mean loss over held-out data, as in use: by the running statistics of the normalisation."""
    features, symbols, classes = task.held_out
    return cross_entropy(model.eval()(features, symbols), classes).item()


def fingerprint(model: nn.Module, optimizer: Optimizer) -> str:
    """Return a hash of every bit that the next step depends on: weights, buffers, optimizer and random state."""
    state = optimizer.state_dict()["state"].values()
    tensors = [*model.state_dict().values(), *(value for values in state for value in values.values())]
    digest = hashlib.sha256()
    for value in (*tensors, torch.get_rng_state()):
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()
