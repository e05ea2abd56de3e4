"""Healthy runs of the last test."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn, optim
from torch.nn.functional import (
    cross_entropy,
    huber_loss,
    mse_loss,
    multi_margin_loss,
    poisson_nll_loss,
)
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from benchmarks.zoo.data import Split, diabetes, friedman, moons, roll, tumours, wine
from benchmarks.zoo.heldout import by_hand, classify, regress
from benchmarks.zoo.models import he, mlp
from benchmarks.zoo.setup import Make, Setup
from benchmarks.zoo.supervised import Loss


CLASS_WEIGHTS = torch.tensor([10.0, 1.0])


class OverFeatures(nn.Module):
    """Attention over the measurements of a wine, each of them a token."""

    def __init__(self, features: int = 13, width: int = 16) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(features, width) * 0.5)
        self.place = nn.Parameter(torch.randn(features, width) * 0.5)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unsqueeze(-1) * self.scale + self.place
        return self.head(self.norm(tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]).mean(1))


class Forecast(nn.Module):
    """A gated recurrent net that says the next value of a series."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.cell = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.unsqueeze(-1))[0][:, -1])


def waves() -> Split:
    """Return noisy sine waves of many lengths, 40 values each, and the value that follows; half of them held out."""
    generator = torch.Generator().manual_seed(5)
    phase, rate = torch.rand(2, 1200, 1, generator=generator)
    series = torch.sin(6 * phase + (0.1 + 0.4 * rate) * torch.arange(41))
    x = series[:, :40] + 0.1 * torch.randn(1200, 40, generator=generator)
    return Split(x[:600], series[:600, 40], x[600:], series[600:, 40])


def counts() -> Split:
    """Return two inputs and counts whose mean is an exponential of them."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(1000, 2, generator=generator)
    y = torch.poisson((1.2 + 0.8 * x[:, 0] - 0.5 * x[:, 1]).exp().clamp(max=40), generator=generator)
    return Split(x[:800], y[:800], x[800:], y[800:])


def _poisson(output: Tensor, target: Tensor) -> Tensor:
    return poisson_nll_loss(output, target, log_input=False, eps=1e-6)


def _signs(output: Tensor, target: Tensor) -> Tensor:
    return (1 - (2 * target - 1) * (output[:, 1] - output[:, 0])).clamp(min=0).square().mean()


def _wine(width: int, depth: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return mlp(depth, width, inputs=13, outputs=3, act=act)


def _tumours(width: int, depth: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return mlp(depth, width, inputs=30, outputs=2, act=act)


def _value(inputs: int, width: int, depth: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return mlp(depth, width, inputs=inputs, outputs=1, act=act)


def _layer_normed() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs in (13, 32, 32, 32):
        layers += [nn.Linear(inputs, 32), nn.LayerNorm(32), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers, nn.Linear(32, 3))


def _narrow_conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 30)),
        nn.Conv1d(1, 12, 5, padding=2),
        nn.GroupNorm(3, 12),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(360, 2),
    )


def _clipped() -> Make:
    plain = classify(
        tumours, lambda: mlp(3, 20, inputs=30, outputs=2, init=he), lambda m: optim.SGD(m.parameters(), 0.3)
    )
    return by_hand(plain, tumours, clip=0.5)


def _healthy(number: int, title: str, make: Make, steps: int = 400) -> Setup:
    return Setup(f"XH{number:02}", title, "healthy", make, steps, held_out=True)


smoothed: Loss = partial(cross_entropy, label_smoothing=0.1)
weighted: Loss = partial(cross_entropy, weight=CLASS_WEIGHTS)

HELDOUT_HEALTHY = (
    _healthy(
        1,
        "wine, 2x24 GELU, RMSprop",
        classify(wine, lambda: _wine(24, 2, nn.GELU), lambda m: optim.RMSprop(m.parameters(), 1e-3)),
    ),
    _healthy(
        2,
        "tumours, 1x48 ReLU, Adagrad",
        classify(tumours, lambda: _tumours(48, 1), lambda m: optim.Adagrad(m.parameters(), 0.05)),
    ),
    _healthy(
        3,
        "diabetes, 3x40 SiLU, Huber loss, NAdam",
        regress(diabetes, lambda: _value(10, 40, 3, nn.SiLU), lambda m: optim.NAdam(m.parameters(), 2e-3), huber_loss),
    ),
    _healthy(
        4,
        "tumours, logistic regression, Nesterov",
        classify(tumours, lambda: _tumours(1, 0), lambda m: optim.SGD(m.parameters(), 0.05, 0.9, nesterov=True)),
    ),
    _healthy(
        5,
        "wine, 4x32 LeakyReLU, layer normalisation, RAdam",
        classify(wine, _layer_normed, lambda m: optim.RAdam(m.parameters(), 3e-3)),
    ),
    _healthy(
        6,
        "Friedman, 2x100 ReLU, Adamax",
        regress(friedman, lambda: _value(10, 100, 2), lambda m: optim.Adamax(m.parameters(), 5e-3)),
    ),
    _healthy(
        7,
        "moons, 6x20 ELU, Adam, batches of 16",
        classify(
            moons,
            lambda: mlp(6, 20, inputs=2, outputs=2, act=nn.ELU),
            lambda m: optim.Adam(m.parameters(), 2e-3),
            batch=16,
        ),
    ),
    _healthy(
        8,
        "tumours, linear, margin loss, weight decay",
        classify(
            tumours,
            lambda: _tumours(1, 0),
            lambda m: optim.SGD(m.parameters(), 0.02, weight_decay=1e-3),
            multi_margin_loss,
        ),
    ),
    _healthy(
        9,
        "wine, smoothed labels, AdamW, cosine",
        classify(
            wine,
            lambda: _wine(40, 2),
            lambda m: optim.AdamW(m.parameters(), 1e-2),
            smoothed,
            scheduler=lambda o: CosineAnnealingLR(o, 400),
        ),
    ),
    _healthy(10, "tumours, 3x20 ReLU, SGD, norm clipped to 0.5", _clipped()),
    _healthy(
        11,
        "rolled sheet, 3x80 tanh, Adadelta",
        regress(roll, lambda: _value(3, 80, 3, nn.Tanh), lambda m: optim.Adadelta(m.parameters(), 1.0)),
    ),
    _healthy(
        12,
        "counts, Poisson likelihood, softplus",
        regress(
            counts,
            lambda: _value(2, 32, 2, nn.Softplus).append(nn.Softplus()),
            lambda m: optim.Adam(m.parameters(), 5e-3),
            _poisson,
        ),
    ),
    _healthy(
        13,
        "tumours, classes weighted 10 to 1, Adam",
        classify(tumours, lambda: _tumours(16, 2), lambda m: optim.Adam(m.parameters(), 2e-3), weighted),
    ),
    _healthy(14, "waves, GRU, Adam", regress(waves, Forecast, lambda m: optim.Adam(m.parameters(), 5e-3))),
    _healthy(
        15,
        "wine, attention over measurements, AdamW",
        classify(wine, OverFeatures, lambda m: optim.AdamW(m.parameters(), 4e-3)),
    ),
    _healthy(
        16,
        "wine, whole data, Rprop",
        classify(wine, lambda: _wine(10, 1, nn.Tanh), lambda m: optim.Rprop(m.parameters(), 1e-3), batch=142),
        40,
    ),
    _healthy(
        17,
        "tumours, batches of 3, SGD with warm-up",
        classify(
            tumours,
            lambda: _tumours(12, 2),
            lambda m: optim.SGD(m.parameters(), 0.02),
            batch=3,
            scheduler=lambda o: LinearLR(o, 0.05, total_iters=100),
        ),
        800,
    ),
    _healthy(
        18,
        "tumours, 1-D convolution, group normalisation, ASGD",
        classify(tumours, _narrow_conv, lambda m: optim.ASGD(m.parameters(), 0.005), _signs),
    ),
    _healthy(
        19,
        "Friedman, 5x30 ReLU, Adafactor",
        regress(friedman, lambda: _value(10, 30, 5), lambda m: optim.Adafactor(m.parameters(), 2e-2), mse_loss),
    ),
)
