"""What takes the step: AdamW and SGD, each in torch's three implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradguard.errors import did_you_mean


GENTLE = 3e-5  # learning rates at which a healthy run learns, and gradients stay nearly what they are for as long as it
STEEP = 1e-3  # takes: for optimizers that normalise the gradient, and for those that do not

Build = Callable[[Iterable[Tensor]], Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "adamw-plain": partial(torch.optim.AdamW, lr=GENTLE, foreach=False),
    "adamw-foreach": partial(torch.optim.AdamW, lr=GENTLE, foreach=True),
    "adamw-fused": partial(torch.optim.AdamW, lr=GENTLE, fused=True),
    "sgd-plain": partial(torch.optim.SGD, lr=STEEP, momentum=0.9, foreach=False),
    "sgd-foreach": partial(torch.optim.SGD, lr=STEEP, momentum=0.9, foreach=True),
    "sgd-fused": partial(torch.optim.SGD, lr=STEEP, momentum=0.9, fused=True),
}


def choose(names: list[str]) -> list[str]:
    """Return the names, all when none is given.

    Raises:
        ValueError: a name is unknown.
    """
    for name in names:
        if name not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {name!r}{did_you_mean(name, OPTIMIZERS)}")
    return names or list(OPTIMIZERS)
