"""Small trainings, guarded by the default policy or not at all, and what there is to assert about them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import gradguard
from gradguard.records import Event, Intervention, Withheld


Setup = tuple[nn.Module, Optimizer, Callable[[int], Tensor]]


@dataclass(repr=False)
class Training:
    """A training that has ended.

    Args:
        model: as it is now.
        optimizer: likewise.
        guard: None when it was not guarded; not closed.
        losses: of every step, as the loop saw them.
        applied: steps that the guard did not skip.
        stopped: what the policy stopped it with.
    """

    model: nn.Module
    optimizer: Optimizer
    guard: gradguard.Guard | None
    losses: list[float] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    stopped: gradguard.TrainingStopped | None = None

    @property
    def interventions(self) -> list[Intervention]:
        return [record for record in self.guard.records if isinstance(record, Intervention)]

    @property
    def acted(self) -> list[tuple[int, str, str]]:
        """What was done, as (step, diagnosis, remedy)."""
        return [(record.step, record.diagnosis, record.remedy) for record in self.interventions]

    @property
    def withheld(self) -> list[Withheld]:
        return [record for record in self.guard.records if isinstance(record, Withheld)]

    @property
    def events(self) -> list[Event]:
        return [record for record in self.guard.records if isinstance(record, Event)]

    @property
    def alarms(self) -> list[str]:
        """Every finding that was acted on or would have been, as a person reads it."""
        records = (*self.interventions, *(r for r in self.withheld if r.reason != "below_severity"))
        return [f"step {record.step}: {record.finding.message}" for record in records]

    @property
    def is_finite(self) -> bool:
        """Whether parameters, buffers and optimizer state are."""
        state = tensors_in([self.model.state_dict(), self.optimizer.state_dict()["state"]])
        return all(bool(tensor.isfinite().all()) for tensor in state)

    def end(self, count: int = 20) -> float:
        """Median of the last losses; NaN when one of them is."""
        last = self.losses[-count:]
        return statistics.median(last) if all(loss == loss for loss in last) else float("nan")


def train(
    make: Callable[[], Setup],
    steps: int | Iterable[int],
    *,
    is_guarded: bool = True,
    is_observed: bool = True,
    schedule: Callable[[Optimizer], Any] | None = None,
    after: Callable[[nn.Module, Optimizer, int], None] | None = None,
    **options: Any,
) -> Training:
    """Train as a user would.

    Args:
        make: builds model, optimizer and the loss at a step, always the same.
        steps: how many, or which ones: leaving one out is a run that never saw that batch.
        is_guarded: whether a guard is attached.
        is_observed: whether the guard is handed the losses.
        schedule: builds a learning-rate scheduler.
        after: called with (model, optimizer, step) after every step.
        **options: for `attach`.
    """
    torch.manual_seed(0)
    model, optimizer, loss_at = make()
    scheduler = schedule(optimizer) if schedule is not None else None
    run = Training(model, optimizer, gradguard.attach(model, optimizer, **options) if is_guarded else None)
    for step in range(steps) if isinstance(steps, int) else steps:
        optimizer.zero_grad()
        loss = loss_at(step)
        loss.backward()
        run.losses.append(loss.item())
        if run.guard is not None and is_observed:
            run.guard.observe(loss)
        try:
            optimizer.step()
        except gradguard.TrainingStopped as error:
            run.stopped = error
            break
        if run.guard is None or not run.guard.last.skipped:
            run.applied.append(step)
        if scheduler is not None:
            scheduler.step()
        if after is not None:
            after(model, optimizer, step)
    return run


def without(steps: int, dropped: Collection[int]) -> list[int]:
    """Steps of a run that never saw some batches."""
    return [step for step in range(steps) if step not in dropped]


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def noise(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=3e-3),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3),
}
Spoil = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def regression(optimizer: str = "adamw", spoil: Spoil | None = None) -> Callable[[], Setup]:
    """A healthy regression; `spoil` may change the batch of a step."""

    def make() -> Setup:
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

        def loss_at(step: int) -> Tensor:
            inputs = noise(step, 64, 8)
            targets = inputs[:, :1] * inputs[:, 1:2] + inputs[:, 2:3] + 0.1 * noise(step + 10**5, 64, 1)
            inputs, targets = spoil(step, inputs, targets) if spoil is not None else (inputs, targets)
            return nn.functional.mse_loss(model(inputs), targets)

        return model, OPTIMIZERS[optimizer](model.parameters()), loss_at

    return make


def classification(optimizer: str = "adamw", spoil: Spoil | None = None) -> Callable[[], Setup]:
    """A healthy classification with layer normalisation; `spoil` may change the batch of a step."""

    def make() -> Setup:
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))
        teacher = noise(10**6, 16, 10)

        def loss_at(step: int) -> Tensor:
            inputs = noise(step, 64, 16)
            targets = (inputs @ teacher).argmax(1)
            inputs, targets = spoil(step, inputs, targets) if spoil is not None else (inputs, targets)
            return nn.functional.cross_entropy(model(inputs), targets)

        return model, OPTIMIZERS[optimizer](model.parameters()), loss_at

    return make
