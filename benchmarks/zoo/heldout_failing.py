"""Failing runs of the last test."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import ExponentialLR

from benchmarks.zoo.data import Split, diabetes, friedman, moons, raw_tumours, roll, tumours, wine
from benchmarks.zoo.failing_signal import BLOWN_UP, SIGNAL_DIES, STUCK
from benchmarks.zoo.failing_steps import TOO_FAST
from benchmarks.zoo.heldout import Optimize, by_hand, classify, regress
from benchmarks.zoo.models import he, initialise, mlp, normal
from benchmarks.zoo.setup import Make, Repair, Setup
from gradguard.faults import Fault


JUMP_AT = 120


def _sgd(lr: float, momentum: float = 0.0, decay: float = 0.0) -> Optimize:
    return lambda model: optim.SGD(model.parameters(), lr, momentum, weight_decay=decay)


def _adam(lr: float, decay: float = 0.0) -> Optimize:
    return lambda model: optim.Adam(model.parameters(), lr, weight_decay=decay)


class Detached(nn.Module):
    """Two parts with a `detach` left in between: the first gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(1, 20, inputs=13, outputs=20)
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).detach().relu())


def _low_biases() -> nn.Sequential:
    model = mlp(3, 50, inputs=10, outputs=1, init=he)
    with torch.no_grad():
        for layer in model[:-1]:
            if isinstance(layer, nn.Linear):
                layer.bias.fill_(-20.0)
    return model


def _raw_progress() -> Split:
    data = diabetes()
    return replace(data, y=data.y * 77 + 152, held_y=data.held_y * 77 + 152)


def _missing_targets() -> Split:
    data = roll()
    y = data.y.clone()
    y[::97] = float("nan")
    return replace(data, y=y)


def _naive(output: Tensor, target: Tensor) -> Tensor:
    return -output.softmax(1).gather(1, target[:, None]).log().mean()


def _random_labels() -> Split:
    return moons().with_shuffled_labels(1.0, 3)


def _failing(
    number: int, title: str, make: Make, repair: Repair, expected: tuple[str, ...], onset: int = 0, *faults: Fault
) -> Setup:
    return Setup(f"XF{number:02}", title, "failing", make, 300, repair, expected, onset, faults=faults, held_out=True)


HELDOUT_FAILING = (
    _failing(
        1,
        "tumours as measured, up to 4000, SGD 0.05",
        classify(raw_tumours, lambda: mlp(2, 32, inputs=30, outputs=2), _sgd(0.05)),
        "advice",
        (*BLOWN_UP, "bad_inputs", "dead_units", "loss_spike"),
    ),
    _failing(
        2,
        "wine, 12x24 sigmoid, Adam",
        classify(wine, lambda: mlp(12, 24, inputs=13, outputs=3, act=nn.Sigmoid), _adam(1e-3)),
        "surgery",
        SIGNAL_DIES,
    ),
    _failing(
        3,
        "diabetes in its own units, SGD 0.05",
        regress(_raw_progress, lambda: mlp(1, 40, inputs=10, outputs=1), _sgd(0.05)),
        "loop",
        (*BLOWN_UP, "bad_inputs", "dead_units", "loss_spike"),
    ),
    _failing(
        4,
        "tumours, 5x40 ReLU, RMSprop 1",
        classify(tumours, lambda: mlp(5, 40, inputs=30, outputs=2), lambda m: optim.RMSprop(m.parameters(), 1.0)),
        "loop",
        TOO_FAST,
    ),
    _failing(
        5,
        "moons, SGD 1e-6",
        classify(moons, lambda: mlp(2, 20, inputs=2, outputs=2), _sgd(1e-6)),
        "loop",
        ("update_ratio", "plateau"),
    ),
    _failing(
        6,
        "wine, 5x40 tanh, weights of 2",
        classify(wine, lambda: mlp(5, 40, inputs=13, outputs=3, act=nn.Tanh, init=normal(2.0)), _sgd(0.01)),
        "surgery",
        ("saturated_units", "bad_initialization"),
    ),
    _failing(
        7,
        "Friedman, 8x50 ReLU, weights of 0.005",
        regress(friedman, lambda: mlp(8, 50, inputs=10, outputs=1, init=normal(0.005)), _sgd(0.1)),
        "surgery",
        (*SIGNAL_DIES, "dead_units"),
    ),
    _failing(
        8,
        "moons, labels drawn by lot",
        classify(_random_labels, lambda: mlp(1, 8, inputs=2, outputs=2), _adam(1e-3)),
        "advice",
        ("plateau",),
    ),
    _failing(
        9,
        "tumours x200, logarithm of a softmax",
        classify(lambda: tumours().scaled(200.0), lambda: mlp(2, 24, inputs=30, outputs=2), _sgd(0.1), _naive),
        "advice",
        ("nonfinite", "bad_inputs"),
    ),
    _failing(
        10,
        "rolled sheet, some targets are NaN",
        regress(_missing_targets, lambda: mlp(2, 40, inputs=3, outputs=1), _adam(2e-3)),
        "loop",
        ("nonfinite", "bad_inputs"),
    ),
    _failing(
        11,
        "tumours, gradients never reset, Adam",
        by_hand(classify(tumours, lambda: mlp(2, 24, inputs=30, outputs=2), _adam(3e-3)), tumours, reset=False),
        "advice",
        ("stale_gradients",),
    ),
    _failing(
        12,
        "wine, a detach between encoder and head",
        classify(wine, Detached, _adam(1e-2)),
        "advice",
        ("frozen_parameters",),
    ),
    _failing(
        13,
        "diabetes, ReLU behind the last layer",
        regress(diabetes, lambda: mlp(3, 30, inputs=10, outputs=1).append(nn.ReLU()), _sgd(0.5)),
        "surgery",
        ("dead_units", "bad_initialization", *STUCK),
    ),
    _failing(
        14,
        "tumours, a rate that grows by 5 % a step",
        classify(
            tumours,
            lambda: mlp(2, 30, inputs=30, outputs=2),
            _sgd(0.01, 0.9),
            scheduler=lambda o: ExponentialLR(o, 1.05),
        ),
        "loop",
        (*TOO_FAST, "nonfinite"),
    ),
    _failing(
        15,
        "wine, all weights 0.3",
        classify(
            wine, lambda: initialise(mlp(2, 30, inputs=13, outputs=3), lambda w: nn.init.constant_(w, 0.3)), _sgd(0.02)
        ),
        "surgery",
        ("bad_initialization",),
    ),
    _failing(
        16,
        "Friedman, 3x50 ReLU, biases of -20",
        regress(friedman, _low_biases, _adam(1e-3)),
        "surgery",
        ("dead_units", "bad_initialization"),
    ),
    _failing(
        17,
        "tumours, weight decay 5 in Adam",
        classify(tumours, lambda: mlp(2, 24, inputs=30, outputs=2), _adam(3e-3, 5.0)),
        "loop",
        ("collapsed_output", "plateau", "vanishing_gradient", "update_ratio"),
    ),
    _failing(
        18,
        "Friedman, rate x300 from half on",
        regress(friedman, lambda: mlp(3, 60, inputs=10, outputs=1, init=he), _sgd(0.02, 0.9)),
        "loop",
        (*TOO_FAST, "nonfinite"),
        JUMP_AT,
        Fault("scale", "lr", at=range(JUMP_AT, 300), factor=300.0),
    ),
)
