"""Runs that fail because the signal dies or blows up on its way: initialisation and activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot
from torch.optim import SGD, Adam

from benchmarks.zoo.data import circles, digits
from benchmarks.zoo.models import (
    NUM_CLASSES,
    Apply,
    Recurrent,
    glorot,
    he,
    he_uniform,
    initialise,
    mlp,
    normal,
    residual_mlp,
)
from benchmarks.zoo.setup import Make, Repair, Setup, Training
from benchmarks.zoo.supervised import supervised


SIGNAL_DIES = ("vanishing_gradient", "bad_initialization")
STUCK = ("plateau", "collapsed_output")
BLOWN_UP = ("nonfinite", "exploding_gradient", "divergence", "bad_initialization")
SAME_UNITS = ("bad_initialization",)


def sgd_on_digits(model: Callable[[], nn.Module], lr: float = 0.1, momentum: float = 0.0) -> Make:
    """Return the plainest run there is."""

    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        net = model()
        return supervised(net, SGD(net.parameters(), lr, momentum=momentum), digits(), seed)

    return make


def adam_on_digits(model: Callable[[], nn.Module], lr: float = 1e-3, batch: int = 64) -> Make:
    """Return the same with Adam."""

    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        net = model()
        return supervised(net, Adam(net.parameters(), lr), digits(), seed, batch=batch)

    return make


def _circles(model: Callable[[], nn.Module], lr: float = 1e-3) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        net = model()
        return supervised(net, Adam(net.parameters(), lr), circles(), seed, batch=128)

    return make


def _ring_net(depth: int, act: Callable[[], nn.Module], norm: bool = False) -> nn.Sequential:
    return mlp(depth, 5, inputs=2, outputs=2, act=act, norm=norm, init=he_uniform)


def _uniform(weight: Tensor) -> None:
    nn.init.uniform_(weight, -0.05, 0.05)


def _recurrent(cell: nn.RNNBase, weight: Callable[[Tensor], object]) -> Recurrent:
    with torch.no_grad():
        weight(cell.weight_hh_l0)
    return Recurrent(cell)


def _tanh_rnn(gain: float) -> Callable[[], nn.Module]:
    return lambda: _recurrent(nn.RNN(1, 16, batch_first=True), lambda w: nn.init.orthogonal_(w, gain))


def _relu_rnn(gain: float) -> Callable[[], nn.Module]:
    def weight(matrix: Tensor) -> None:
        matrix.copy_(gain * torch.eye(len(matrix)))

    return lambda: _recurrent(nn.RNN(1, 64, nonlinearity="relu", batch_first=True), weight)


def _with_biases(value: float) -> nn.Sequential:
    model = mlp(3, init=he)
    with torch.no_grad():
        for layer in model[:-1]:
            if isinstance(layer, nn.Linear):
                layer.bias.fill_(value)
    return model


def _constant(value: float) -> nn.Sequential:
    return initialise(mlp(2), lambda weight: nn.init.constant_(weight, value))


def _squared(seed: int) -> Training:
    """Raw pixels, sigmoids up to the output and the squared error of one-hot targets, after a well-known tutorial."""
    torch.manual_seed(seed)
    model = mlp(1, 30, act=nn.Sigmoid, init=normal(1.0)).append(nn.Sigmoid())

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return mse_loss(output, one_hot(target, NUM_CLASSES).float())

    return supervised(model, SGD(model.parameters(), 3.0), digits().scaled(16.0), seed, batch=10, loss=loss)


def _failing(id: str, title: str, make: Make, repair: Repair, expected: tuple[str, ...], reference: Make) -> Setup:
    return Setup(id, title, "failing", make, repair=repair, expected=expected, reference=reference)


FAILING_SIGNAL = (
    _failing(
        "F01",
        "10x5 sigmoid on circles, Adam",
        _circles(lambda: _ring_net(10, nn.Sigmoid)),
        "surgery",
        SIGNAL_DIES,
        _circles(lambda: _ring_net(10, nn.ReLU, norm=True), 1e-2),
    ),
    _failing(
        "F02",
        "6x64 sigmoid, SGD",
        sgd_on_digits(lambda: mlp(6, act=nn.Sigmoid)),
        "surgery",
        SIGNAL_DIES,
        sgd_on_digits(lambda: mlp(6, init=he)),
    ),
    _failing(
        "F03",
        "10x64 tanh, tiny uniform weights",
        sgd_on_digits(lambda: mlp(10, act=nn.Tanh, init=_uniform)),
        "surgery",
        SIGNAL_DIES,
        sgd_on_digits(lambda: mlp(10, act=nn.Tanh, init=glorot)),
    ),
    _failing(
        "F04",
        "20x64 ReLU, weights of 0.01",
        sgd_on_digits(lambda: mlp(20, init=normal(0.01))),
        "surgery",
        (*SIGNAL_DIES, "dead_units"),
        sgd_on_digits(lambda: mlp(20, norm=True, init=he)),
    ),
    _failing(
        "F05",
        "34x128 ReLU, Glorot, Adam",
        adam_on_digits(lambda: mlp(34, 128, init=glorot), batch=32),
        "surgery",
        ("dead_units", "vanishing_gradient", "bad_initialization", "plateau"),
        adam_on_digits(lambda: residual_mlp(16, 128), batch=32),
    ),
    _failing(
        "F06",
        "tanh RNN, 64 steps, recurrent gain 0.5",
        adam_on_digits(_tanh_rnn(0.5)),
        "surgery",
        ("vanishing_in_time", *SIGNAL_DIES),
        adam_on_digits(lambda: Recurrent(nn.LSTM(1, 32, batch_first=True)), 5e-3),
    ),
    _failing(
        "F07",
        "4x5 exponentials on circles",
        _circles(lambda: _ring_net(4, lambda: Apply(torch.exp))),
        "surgery",
        BLOWN_UP,
        _circles(lambda: _ring_net(4, nn.Tanh), 1e-2),
    ),
    _failing(
        "F08",
        "10x64 ReLU, weights of 0.5",
        sgd_on_digits(lambda: mlp(10, init=normal(0.5)), 0.01),
        "surgery",
        BLOWN_UP,
        sgd_on_digits(lambda: mlp(10, init=he), 0.01),
    ),
    _failing(
        "F12",
        "ReLU RNN, 64 steps, recurrent gain 1.2",
        sgd_on_digits(_relu_rnn(1.2), 0.01),
        "loop",
        BLOWN_UP,
        adam_on_digits(_relu_rnn(1.0)),
    ),
    _failing(
        "F17",
        "3x64 ReLU, biases of -10",
        sgd_on_digits(lambda: _with_biases(-10.0)),
        "surgery",
        ("dead_units", "bad_initialization"),
        sgd_on_digits(lambda: _with_biases(0.0)),
    ),
    _failing(
        "F25",
        "all weights zero",
        sgd_on_digits(lambda: _constant(0.0)),
        "surgery",
        (*SAME_UNITS, "dead_units"),
        sgd_on_digits(lambda: mlp(2)),
    ),
    _failing(
        "F26",
        "all weights 0.01",
        sgd_on_digits(lambda: _constant(0.01)),
        "surgery",
        SAME_UNITS,
        sgd_on_digits(lambda: mlp(2)),
    ),
    _failing(
        "F28",
        "3x64 with softmax between layers",
        sgd_on_digits(lambda: mlp(3, act=lambda: nn.Softmax(1))),
        "surgery",
        (*SIGNAL_DIES, "collapsed_output"),
        sgd_on_digits(lambda: mlp(3)),
    ),
    _failing(
        "F37",
        "sigmoids on raw pixels, squared error, weights of 1, SGD 3",
        _squared,
        "surgery",
        ("saturated_units", "bad_initialization"),
        sgd_on_digits(lambda: mlp(1, 30, act=nn.Sigmoid, init=glorot), 0.5),
    ),
    _failing(
        "F41",
        "4x128 tanh, weights of 1",
        sgd_on_digits(lambda: mlp(4, 128, act=nn.Tanh, init=normal(1.0))),
        "surgery",
        ("saturated_units", "bad_initialization"),
        sgd_on_digits(lambda: mlp(4, 128, act=nn.Tanh, init=glorot)),
    ),
)
