"""Runs that fail because of the steps that are taken: learning rate, batch, decay, the loop itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

from benchmarks.zoo.data import Split, batches, blobs, diabetes, digits
from benchmarks.zoo.failing_signal import BLOWN_UP
from benchmarks.zoo.models import Initialise, he, mlp
from benchmarks.zoo.setup import Make, Observe, Setup, Training, Turn
from benchmarks.zoo.supervised import Loss, accuracy, first_batch, regression, supervised
from gradguard.faults import Fault


SPIKE_AT = 150
TOO_FAST = (
    "exploding_gradient",
    "loss_spike",
    "divergence",
    "oscillation",
    "update_ratio",
    "update_spike",
    "dead_units",
)


def _run(
    depth: int,
    optimizer: Callable[[nn.Module], Optimizer],
    data: Callable[[], Split] = digits,
    *,
    batch: int = 64,
    dropout: float = 0.0,
    loss: Loss = cross_entropy,
    init: Initialise | None = None,
) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        model = mlp(depth, init=init, dropout=dropout)
        return supervised(model, optimizer(model), data(), seed, batch=batch, loss=loss)

    return make


def _sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Callable[[nn.Module], Optimizer]:
    return lambda model: SGD(model.parameters(), lr, momentum=momentum, weight_decay=weight_decay)


def _adam(lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> Callable[[nn.Module], Optimizer]:
    return lambda model: Adam(model.parameters(), lr, betas=betas)


def _targets_times(factor: float, lr: float) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        data, model = diabetes(), mlp(2, inputs=10, outputs=1)
        data = Split(data.x, data.y * factor, data.held_x, data.held_y * factor)
        return regression(model, SGD(model.parameters(), lr), data, seed)

    return make


def _parabola(lr: float) -> Make:
    """Y = 5 x^2 plus a cubed noise, on [0, 5): large targets, and a learning rate for small ones."""

    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        x = torch.rand(1000, 1) * 5
        y = 5 * x[:, 0].square() + torch.randn(1000).pow(3)
        model = mlp(2, 50, inputs=1, outputs=1)
        return regression(model, SGD(model.parameters(), lr), Split(x[:800], y[:800], x[800:], y[800:]), seed, batch=32)

    return make


def _blobs(lr: float) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        model = mlp(1, 50, inputs=2, outputs=3)
        return supervised(model, SGD(model.parameters(), lr, momentum=0.9), blobs().standardised(), seed, batch=1)

    return make


def _without_zero_grad(seed: int) -> Training:
    torch.manual_seed(seed)
    model, data = mlp(2), digits()
    optimizer = SGD(model.parameters(), 0.1)
    order = batches(len(data.x), 64, seed)

    def run(step: int, observe: Observe) -> None:
        rows = next(order)
        loss = cross_entropy(model(data.x[rows]), data.y[rows])
        loss.backward()
        observe(loss)
        optimizer.step()

    return Training(model, [Turn(optimizer, run)], lambda: accuracy(model, data), first_batch(model, data, 64, seed))


def _uphill(output: Tensor, target: Tensor) -> Tensor:
    """The value of the loss with the gradient's sign turned round."""
    loss = cross_entropy(output, target)
    return loss - 2 * (loss - loss.detach())


def _summed(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output, target, reduction="sum")


def _last_layer_only(model: nn.Module) -> Optimizer:
    assert isinstance(model, nn.Sequential)
    return SGD(model[-1].parameters(), 0.1)


FAILING_STEPS = (
    Setup(
        "F10",
        "targets x100, SGD 0.1",
        "failing",
        _targets_times(100.0, 0.1),
        repair="loop",
        expected=(*BLOWN_UP, "bad_inputs"),
        reference=_targets_times(1.0, 0.05),
    ),
    Setup(
        "F11",
        "large targets, SGD 0.1",
        "failing",
        _parabola(0.1),
        repair="loop",
        expected=(*BLOWN_UP, "bad_inputs"),
        reference=_parabola(1e-4),
    ),
    Setup(
        "F16",
        "3x64 ReLU, SGD 1 with momentum",
        "failing",
        _run(3, _sgd(1.0, 0.9), init=he),
        repair="loop",
        expected=TOO_FAST,
        reference=_run(3, _sgd(0.05, 0.9), init=he),
    ),
    Setup(
        "F18",
        "4x64 ReLU, Adam 0.1",
        "failing",
        _run(4, _adam(0.1)),
        repair="loop",
        expected=TOO_FAST,
        reference=_run(4, _adam(3e-3)),
    ),
    Setup(
        "F21",
        "batches of 1, SGD 0.05 with momentum",
        "failing",
        _blobs(0.05),
        repair="loop",
        expected=TOO_FAST,
        reference=_blobs(0.002),
    ),
    Setup(
        "F22",
        "batches of 2, SGD 0.3",
        "failing",
        _run(2, _sgd(0.3), batch=2, init=he),
        repair="loop",
        expected=TOO_FAST,
        reference=_run(2, _sgd(0.05), batch=2, init=he),
    ),
    Setup(
        "F23",
        "Adam 0.05, betas (0.5, 0.5)",
        "failing",
        _run(3, _adam(0.05, (0.5, 0.5))),
        repair="loop",
        expected=TOO_FAST,
        reference=_run(3, _adam(3e-3)),
    ),
    Setup(
        "F24",
        "SGD 1e-5",
        "failing",
        _run(2, _sgd(1e-5)),
        repair="loop",
        expected=("update_ratio", "plateau"),
        reference=_run(2, _sgd(0.1)),
    ),
    Setup(
        "F31",
        "weight decay 0.5",
        "failing",
        _run(2, _sgd(0.1, weight_decay=0.5)),
        repair="loop",
        expected=("excess_weight_decay", "collapsed_output", "plateau", "vanishing_gradient", "update_ratio"),
        reference=_run(2, _sgd(0.1)),
    ),
    Setup(
        "F33",
        "gradients never reset",
        "failing",
        _without_zero_grad,
        repair="advice",
        expected=("stale_gradients",),
        reference=_run(2, _sgd(0.1)),
    ),
    Setup(
        "F34",
        "dropout 0.9 in three layers",
        "failing",
        _run(3, _adam(1e-3), dropout=0.9),
        repair="loop",
        expected=("plateau", "dead_units", "oscillation"),
        reference=_run(3, _adam(1e-3), dropout=0.2),
    ),
    Setup(
        "F35",
        "the gradient's sign turned round",
        "failing",
        _run(2, _sgd(0.05), loss=_uphill),
        repair="advice",
        expected=("divergence", "nonfinite", "exploding_gradient"),
        reference=_run(2, _sgd(0.05)),
    ),
    Setup(
        "F36",
        "the optimizer has the last layer only",
        "failing",
        _run(3, _last_layer_only, init=he),
        repair="advice",
        expected=("frozen_parameters",),
        reference=_run(3, _sgd(0.1), init=he),
    ),
    Setup(
        "F38",
        "loss summed, SGD 0.1",
        "failing",
        _run(2, _sgd(0.1), loss=_summed),
        repair="loop",
        expected=TOO_FAST,
        reference=_run(2, _sgd(0.1)),
    ),
    Setup(
        "F40",
        "learning rate x200 for one step",
        "failing",
        _run(3, _sgd(0.1, 0.9), init=he),
        repair="loop",
        expected=TOO_FAST,
        onset=SPIKE_AT,
        reference=_run(3, _sgd(0.1, 0.9), init=he),
        faults=(Fault("scale", "lr", at=SPIKE_AT, factor=200.0),),
    ),
)
