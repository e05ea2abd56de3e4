"""Common training runs that learn: the guard has to leave them alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.zoo.data import Split, blobs, circles, diabetes, digits
from benchmarks.zoo.models import NUM_CLASSES, Recurrent, Transformer, cnn, glorot, he, lecun, mlp, residual_mlp
from benchmarks.zoo.setup import Make, Setup, Training
from benchmarks.zoo.supervised import regression, supervised


def _digits(
    model: Callable[[], nn.Module],
    optimizer: Callable[[nn.Module], Optimizer],
    data: Callable[[], Split] = digits,
    batch: int = 64,
) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        net = model()
        return supervised(net, optimizer(net), data(), seed, batch=batch)

    return make


def _sgd(lr: float, momentum: float = 0.0) -> Callable[[nn.Module], Optimizer]:
    return lambda model: SGD(model.parameters(), lr, momentum=momentum)


def _adam(lr: float = 1e-3) -> Callable[[nn.Module], Optimizer]:
    return lambda model: Adam(model.parameters(), lr)


def _adamw(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: AdamW(model.parameters(), lr)


def _diabetes(seed: int) -> Training:
    torch.manual_seed(seed)
    model = mlp(2, inputs=10, outputs=1)
    return regression(model, Adam(model.parameters(), 1e-3), diabetes(), seed)


def _noisy_labels(seed: int) -> Training:
    torch.manual_seed(seed)
    model = mlp(2)
    return supervised(model, Adam(model.parameters(), 1e-3), digits().with_shuffled_labels(0.3, seed), seed)


def _warmup_cosine(seed: int) -> Training:
    torch.manual_seed(seed)
    model = mlp(3)
    optimizer = AdamW(model.parameters(), 3e-3)

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / 30) * (1 + math.cos(math.pi * min(1.0, step / 300))) / 2

    return supervised(model, optimizer, digits(), seed, scheduler=LambdaLR(optimizer, factor))


def _circles(seed: int) -> Training:
    torch.manual_seed(seed)
    model = mlp(3, 32, inputs=2, outputs=2)
    return supervised(model, Adam(model.parameters(), 3e-3), circles(), seed)


def _one_sample(seed: int) -> Training:
    torch.manual_seed(seed)
    model = mlp(1, 50, inputs=2, outputs=3)
    return supervised(model, SGD(model.parameters(), 0.01), blobs().standardised(), seed, batch=1)


def _healthy(id: str, title: str, make: Make, steps: int = 300) -> Setup:
    return Setup(id, title, "healthy", make, steps)


HEALTHY = (
    _healthy("H01", "2x64 ReLU, Adam", _digits(lambda: mlp(2), _adam())),
    _healthy("H02", "2x64 ReLU, He, SGD with momentum", _digits(lambda: mlp(2, init=he), _sgd(0.1, 0.9))),
    _healthy("H03", "10x64 ReLU, batch normalisation, Adam", _digits(lambda: mlp(10, norm=True), _adam())),
    _healthy("H04", "8 residual blocks, layer normalisation, AdamW", _digits(lambda: residual_mlp(8), _adamw(1e-3))),
    _healthy("H05", "CNN, batch normalisation, SGD with momentum", _digits(lambda: cnn(norm=True), _sgd(0.05, 0.9))),
    _healthy("H06", "CNN, Adam", _digits(lambda: cnn(norm=False), _adam())),
    _healthy("H07", "LSTM over 64 pixels", _digits(lambda: Recurrent(nn.LSTM(1, 32, batch_first=True)), _adam(5e-3))),
    _healthy("H08", "2-layer pre-norm transformer, AdamW", _digits(Transformer, _adamw(2e-3))),
    _healthy(
        "H09",
        "3x64 tanh, Glorot, standardised, SGD",
        _digits(lambda: mlp(3, act=nn.Tanh, init=glorot), _sgd(0.1), lambda: digits().standardised()),
    ),
    _healthy("H10", "1x64 sigmoid, SGD", _digits(lambda: mlp(1, act=nn.Sigmoid), _sgd(0.5))),
    _healthy("H11", "1x512 ReLU, Adam", _digits(lambda: mlp(1, 512), _adam())),
    _healthy("H12", "diabetes regression, Adam", _diabetes),
    _healthy("H13", "batches of 4, SGD", _digits(lambda: mlp(2, init=he), _sgd(0.05), batch=4)),
    _healthy("H14", "dropout 0.5, Adam", _digits(lambda: mlp(2, 128, dropout=0.5), _adam())),
    _healthy("H15", "30 % wrong labels", _noisy_labels),
    _healthy("H16", "logistic regression, SGD", _digits(lambda: nn.Sequential(nn.Linear(64, NUM_CLASSES)), _sgd(0.5))),
    _healthy("H17", "warm-up and cosine, AdamW", _warmup_cosine),
    _healthy(
        "H18",
        "8x64 SELU, LeCun, SGD with momentum",
        _digits(lambda: mlp(8, act=nn.SELU, init=lecun), _sgd(0.01, 0.9), lambda: digits().standardised()),
    ),
    _healthy("H19", "900 steps, far past convergence", _digits(lambda: mlp(2), _sgd(0.2)), steps=900),
    _healthy("H20", "circles, 3x32 ReLU, Adam", _circles),
    _healthy("H21", "batches of 1, SGD", _one_sample, 1000),
    _healthy(
        "H22", "batches of 2, SGD with momentum", _digits(lambda: mlp(2, init=he), _sgd(5e-3, 0.9), batch=2), 1000
    ),
)
