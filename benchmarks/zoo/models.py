"""The networks, small enough for hundreds of steps in a second."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


Initialise = Callable[[Tensor], object]  # in place, of one weight matrix
NUM_PIXELS, NUM_CLASSES, SIDE = 64, 10, 8


def mlp(
    depth: int,
    width: int = 64,
    *,
    inputs: int = NUM_PIXELS,
    outputs: int = NUM_CLASSES,
    act: Callable[[], nn.Module] = nn.ReLU,
    norm: bool = False,
    dropout: float = 0.0,
    init: Initialise | None = None,
) -> nn.Sequential:
    """Return `depth` hidden layers and an output layer; `init` sets every weight matrix and zeroes the biases."""
    layers: list[nn.Module] = []
    for index in range(depth):
        layers.append(nn.Linear(inputs if index == 0 else width, width))
        if norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(act())
        if dropout:
            layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear(width if depth else inputs, outputs))
    model = nn.Sequential(*layers)
    return model if init is None else initialise(model, init)


@torch.no_grad()
def initialise(model: nn.Sequential, init: Initialise) -> nn.Sequential:
    """Set the weights of every linear layer with `init`, zero its bias, and return the model."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            init(module.weight)
            nn.init.zeros_(module.bias)
    return model


def he(weight: Tensor) -> None:
    """He initialisation for ReLU, normal."""
    nn.init.kaiming_normal_(weight, nonlinearity="relu")


def he_uniform(weight: Tensor) -> None:
    """He initialisation for ReLU, uniform."""
    nn.init.kaiming_uniform_(weight, nonlinearity="relu")


def glorot(weight: Tensor) -> None:
    """Glorot (Xavier) initialisation, uniform."""
    nn.init.xavier_uniform_(weight)


def lecun(weight: Tensor) -> None:
    """LeCun initialisation, normal, as SELU wants it."""
    nn.init.normal_(weight, std=1.0 / math.sqrt(weight.shape[1]))


def normal(std: float) -> Initialise:
    """Return an initialisation with a normal distribution of this standard deviation."""
    return lambda weight: nn.init.normal_(weight, std=std)


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """x plus what a block makes of it."""

    def __init__(self, *block: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*block)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def residual_mlp(blocks: int, width: int = 64) -> nn.Sequential:
    """Return a residual network of `blocks` two-layer blocks with layer normalisation."""

    def block() -> Residual:
        return Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    return nn.Sequential(
        nn.Linear(NUM_PIXELS, width),
        *(block() for _ in range(blocks)),
        nn.LayerNorm(width),
        nn.Linear(width, NUM_CLASSES),
    )


def cnn(norm: bool) -> nn.Sequential:
    """Return two convolutions, with batch normalisation if asked, and a linear layer."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        between = [nn.BatchNorm2d(outputs)] if norm else []
        return [nn.Conv2d(inputs, outputs, 3, padding=1), *between, nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)), *block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(128, NUM_CLASSES)
    )


class Recurrent(nn.Module):
    """Reads an image pixel by pixel (T = 64) and answers from the last state."""

    def __init__(self, cell: nn.RNNBase) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(cell.hidden_size, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(x.unsqueeze(-1))
        return self.head(states[:, -1])


class Transformer(nn.Module):
    """Two pre-norm encoder layers over the rows of an image."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(SIDE, width)
        self.place = nn.Parameter(torch.randn(SIDE, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embed(x.unflatten(1, (SIDE, SIDE))) + self.place
        for layer in self.layers:
            rows = layer(rows)
        return self.head(self.norm(rows).mean(1))
