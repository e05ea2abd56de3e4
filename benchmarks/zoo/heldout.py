"""Builds the set-ups of the last test: other data, losses, optimizers and models than any threshold was chosen on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from benchmarks.zoo.data import Split, batches
from benchmarks.zoo.setup import Make, Observe, Training, Turn
from benchmarks.zoo.supervised import Loss, r_squared, supervised


Model = Callable[[], nn.Module]
Optimize = Callable[[nn.Module], Optimizer]


def classify(
    data: Callable[[], Split],
    model: Model,
    optimizer: Optimize,
    loss: Loss = cross_entropy,
    *,
    batch: int = 32,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
) -> Make:
    """Return a run that is judged by accuracy."""

    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        net = model()
        own = optimizer(net)
        schedule = None if scheduler is None else scheduler(own)
        return supervised(net, own, data(), seed, batch=batch, loss=loss, scheduler=schedule)

    return make


def regress(
    data: Callable[[], Split], model: Model, optimizer: Optimize, loss: Loss = mse_loss, batch: int = 50
) -> Make:
    """Return a run with a single output that is judged by R^2."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.squeeze(1), target)

    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        net = model()
        return supervised(
            net, optimizer(net), data(), seed, batch=batch, loss=loss_of, score=r_squared, is_classifier=False
        )

    return make


def by_hand(
    make: Make, data: Callable[[], Split], loss: Loss = cross_entropy, clip: float | None = None, reset: bool = True
) -> Make:
    """Return the run with a loop of its own: with a clip, or without `zero_grad`."""

    def changed(seed: int) -> Training:
        training = make(seed)
        optimizer, split = training.turns[0].optimizer, data()
        order = batches(len(split.x), 32, seed)

        def run(step: int, observe: Observe) -> None:
            rows = next(order)
            if reset:
                optimizer.zero_grad()
            value = loss(training.model(split.x[rows]), split.y[rows])
            value.backward()
            observe(value)
            if clip is not None:
                clip_grad_norm_(training.model.parameters(), clip)
            optimizer.step()

        return Training(training.model, [Turn(optimizer, run)], training.evaluate, accuracies=training.accuracies)

    return changed
