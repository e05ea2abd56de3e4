"""Builds the common kind of training run: batches, a loss, one optimizer, perhaps a scheduler."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from benchmarks.zoo.data import Split, batches
from benchmarks.zoo.setup import Observe, Opening, Training, Turn


Loss = Callable[[Tensor, Tensor], Tensor]  # output, target -> ()
NUM_SEEN = 360  # training samples that the accuracy of an epoch is taken on


def plain_turn(optimizer: Optimizer, loss_at: Callable[[int], Tensor], schedulers: LRScheduler | None = None) -> Turn:
    """Return the turn that every tutorial shows: zero_grad, backward, step."""

    def run(step: int, observe: Observe) -> None:
        optimizer.zero_grad()
        loss = loss_at(step)
        loss.backward()
        observe(loss)
        optimizer.step()
        if schedulers is not None:
            schedulers.step()

    return Turn(optimizer, run)


def supervised(
    model: nn.Module,
    optimizer: Optimizer,
    data: Split,
    seed: int,
    *,
    batch: int = 64,
    loss: Loss = cross_entropy,
    score: Callable[[nn.Module, Split], float] | None = None,
    scheduler: LRScheduler | None = None,
    is_classifier: bool = True,
) -> Training:
    """Return the training of a model on a split, judged by accuracy unless `score` says otherwise.

    A classifier's score is an accuracy whatever computes it.
    """
    order = batches(len(data.x), batch, seed)
    judge = accuracy if score is None else score

    def loss_at(step: int) -> Tensor:
        rows = next(order)
        return loss(model(data.x[rows]), data.y[rows])

    opening = first_batch(model, data, batch, seed, loss)
    few = Split(data.x, data.y, data.x[:NUM_SEEN], data.y[:NUM_SEEN])  # of those to train on, as if they were held out
    return Training(
        model,
        [plain_turn(optimizer, loss_at, scheduler)],
        lambda: judge(model, data),
        opening,
        accuracies=(lambda: (judge(model, few), judge(model, data))) if is_classifier else None,
    )


def first_batch(model: nn.Module, data: Split, batch: int, seed: int, loss: Loss = cross_entropy) -> Opening:
    """Return what the first step works on, without taking it from the stream of batches."""
    rows = next(batches(len(data.x), batch, seed))
    return Opening(model, (data.x[rows], data.y[rows]), loss)


def regression(model: nn.Module, optimizer: Optimizer, data: Split, seed: int, *, batch: int = 64) -> Training:
    """Return a training with the mean squared error of a single output, judged by R^2."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return mse_loss(output.squeeze(1), target)

    return supervised(model, optimizer, data, seed, batch=batch, loss=loss, score=r_squared, is_classifier=False)


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return the model's outputs as in use: in evaluation mode, which is left again."""
    was_training = model.training
    model.eval()
    result = model(x)
    model.train(was_training)
    return result


def accuracy(model: nn.Module, data: Split) -> float:
    """Return the share of held-out samples that are classified right; outputs that are not finite are wrong."""
    logits = outputs(model, data.held_x)
    right = (logits.argmax(1) == data.held_y) & logits.isfinite().all(1)
    return right.float().mean().item()


def r_squared(model: nn.Module, data: Split) -> float:
    """Return the share of the held-out variance that a single output explains."""
    error = (outputs(model, data.held_x).squeeze(1) - data.held_y).square().mean()
    return (1 - error / data.held_y.var(correction=0)).item()
