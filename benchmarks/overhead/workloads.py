"""What is trained: models from 4 to 2,000 parameter tensors, and from 34 kB to 498 MB of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradguard.demo.model import GPT
from gradguard.errors import did_you_mean


NUM_CLASSES = 10
NUM_BATCHES = 4

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model and its data.

    Args:
        name: short and unique.
        what: it is, in a few words.
        make: builds the model; called with (inputs, targets) it returns the loss.
        draw: returns one random batch; None when there is no forward and backward: gradients are preset.
        min_rounds: fewest rounds that are measured, however long they take.
        settle: steps of a guard before its steps count, so that its rolling windows are full.
    """

    name: str
    what: str
    make: Callable[[], nn.Module]
    draw: Callable[[], Batch] | None
    min_rounds: int = 20
    settle: int = 60

    def batches(self) -> list[Batch]:
        """Return the batches that the rounds take in turn; none when gradients are preset."""
        return [self.draw() for _ in range(NUM_BATCHES)] if self.draw is not None else []


class Layers(nn.Module):
    """`depth` linear layers of one width, each added to its input, and the last one a classifier.

    Hidden weights begin at 1/depth of their usual size, so that gradients neither vanish nor explode at any depth.
    """

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))
        self.head = nn.Linear(width, NUM_CLASSES)
        with torch.no_grad():
            for param in self.hidden.parameters():
                param.div_(depth)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = inputs
        for layer in self.hidden:
            x = x + torch.relu(layer(x))
        return functional.cross_entropy(self.head(x), targets)


class Convolutions(nn.Module):
    """Four convolutions with batch normalisation, 32x32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, NUM_CLASSES))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.layers(inputs), targets)


class Language(nn.Module):
    """A 4-layer GPT over bytes."""

    def __init__(self, context: int = 64) -> None:
        super().__init__()
        self.gpt = GPT(256, context=context, width=64)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.gpt(inputs).flatten(0, 1), targets.flatten())


def gpt2_small(vocabulary: int = 50257, context: int = 1024, width: int = 768, num_layers: int = 12) -> nn.Module:
    """Return the parameters of GPT-2 small, 148 tensors and 124 M entries, without a forward pass."""

    def block() -> nn.Module:
        return nn.ModuleDict(
            {
                "ln_1": nn.LayerNorm(width),
                "c_attn": nn.Linear(width, 3 * width),
                "c_proj": nn.Linear(width, width),
                "ln_2": nn.LayerNorm(width),
                "c_fc": nn.Linear(width, 4 * width),
                "c_out": nn.Linear(4 * width, width),
            }
        )

    return nn.ModuleDict(
        {
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(context, width),
            "h": nn.ModuleList(block() for _ in range(num_layers)),
            "ln_f": nn.LayerNorm(width),
        }
    )


def _vectors(width: int, size: int = 32) -> Callable[[], Batch]:
    return lambda: (torch.randn(size, width), torch.randint(NUM_CLASSES, (size,)))


def _images() -> Batch:
    return torch.randn(8, 3, 32, 32), torch.randint(NUM_CLASSES, (8,))


def _text() -> Batch:
    tokens = torch.randint(256, (4, 65))
    return tokens[:, :-1], tokens[:, 1:]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlp-4", "MLP, 2 layers of 64", lambda: Layers(2, 64), _vectors(64)),
        Workload("mlp-40", "MLP, 20 layers of 256", lambda: Layers(20, 256), _vectors(256)),
        Workload("mlp-200", "MLP, 100 layers of 64", lambda: Layers(100, 64), _vectors(64)),
        Workload("mlp-2000", "MLP, 1,000 layers of 16", lambda: Layers(1000, 16), _vectors(16)),
        Workload("conv", "4 convolutions with BatchNorm", Convolutions, _images),
        Workload("gpt-4-layers", "GPT, 4 layers of 64", Language, _text),
        Workload("gpt2-124m", "GPT-2 small, gradients only", gpt2_small, None, settle=0),
    )
}


def choose(names: list[str]) -> list[Workload]:
    """Return the workloads of these names, all when none is given.

    Raises:
        ValueError: a name is unknown.
    """
    for name in names:
        if name not in WORKLOADS:
            raise ValueError(f"unknown workload {name!r}{did_you_mean(name, WORKLOADS)}")
    return [WORKLOADS[name] for name in names or WORKLOADS]
