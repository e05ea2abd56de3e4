"""One run of the league: a task, a condition, an entrant, a seed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from pydantic import TypeAdapter
from pydantic_core import to_json
from torch import Tensor

from benchmarks.league.conditions import CONDITIONS, add_noise, wrong_labels
from benchmarks.league.entrants import entrant
from benchmarks.league.tasks import NUM_STEPS, TASKS, rate_factor
from gradguard.errors import TrainingStopped
from gradguard.faults import inject


@dataclass(frozen=True)
class Run:
    """What one run came to.

    Args:
        task: its key in `TASKS`.
        condition: its key in `CONDITIONS`.
        entrant: its key in `ENTRANTS`, or a policy file.
        seed: of the weights, the order of the data, and the weather.
        steps: of the run.
        final: loss on held-out data at the end; NaN or infinite when the model is broken.
        steps_lost: steps that did not reach the final weights: skipped, undone, or never taken.
        interventions: steps at which something was changed.
        digest: of the final weights and the optimizer's state, bit by bit.
        seconds: wall time of the training loop.
        stopped: why the guard ended the run, or "".
        remedies: of our guard: how often each was applied.
        story: of our guard: every action.
    """

    task: str
    condition: str
    entrant: str
    seed: int
    steps: int
    final: float
    steps_lost: int
    interventions: int
    digest: str
    seconds: float
    stopped: str = ""
    remedies: dict[str, int] = field(default_factory=dict)
    story: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells the run from the others: task, condition, entrant and seed."""
        return self.task, self.condition, self.entrant, self.seed


def run(task: str, condition: str, name: str, seed: int, num_steps: int = NUM_STEPS) -> Run:
    """Train once."""
    training, weather = TASKS[task](seed), CONDITIONS[condition]
    model, optimizer = training.model, training.optimizer
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: weather.rate * rate_factor(step, num_steps))
    bad, faults = weather.bad_steps(seed, num_steps), weather.faults(seed, num_steps, training.entrance)
    gate = entrant(name).make(model, optimizer)
    stopped = ""
    started = time.perf_counter()
    with inject(model, optimizer, faults, seed=seed):
        try:
            for step, (inputs, targets) in enumerate(islice(training.batches, num_steps)):
                if step in bad:
                    targets = wrong_labels(targets, training.num_classes, seed, step)
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=weather.bf16):
                    loss = training.loss((inputs, targets))
                if 2 * step >= num_steps:
                    loss = loss * weather.level
                loss.backward()  # type: ignore[no-untyped-call]
                if weather.noise:
                    add_noise(model.parameters(), weather.noise, seed, step)
                gate.step(step, loss)
                scheduler.step()
        except TrainingStopped as error:
            stopped = str(error)
        finally:
            gate.close()
    seconds = time.perf_counter() - started
    return Run(
        task=task,
        condition=condition,
        entrant=name,
        seed=seed,
        steps=num_steps,
        final=training.validate(),
        steps_lost=num_steps - len(gate.taken),
        interventions=gate.interventions,
        digest=_digest([*model.state_dict().values(), *_moments(optimizer)]),
        seconds=seconds,
        stopped=stopped,
        remedies=dict(getattr(gate, "remedies", {})),
        story=tuple(getattr(gate, "story", ())),
    )


def dump(runs: Sequence[Run]) -> bytes:
    """Return the runs as JSON; numbers that are not finite are the words "NaN", "Infinity" and "-Infinity"."""
    return to_json(runs, inf_nan_mode="strings", indent=1)


def load(text: bytes) -> list[Run]:
    """Return the runs that were dumped."""
    return TypeAdapter(list[Run]).validate_json(text)


def _moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        value
        for state in optimizer.state_dict()["state"].values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
