"""What takes the step: AdamW and SGD, each in torch's three implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradguard.errors import did_you_mean


TINY = 1e-7  # a learning rate at which gradients stay what they are for as long as it takes

Build = Callable[[Iterable[Tensor]], Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "adamw-plain": partial(torch.optim.AdamW, lr=TINY, foreach=False),
    "adamw-foreach": partial(torch.optim.AdamW, lr=TINY, foreach=True),
    "adamw-fused": partial(torch.optim.AdamW, lr=TINY, fused=True),
    "sgd-plain": partial(torch.optim.SGD, lr=TINY, momentum=0.9, foreach=False),
    "sgd-foreach": partial(torch.optim.SGD, lr=TINY, momentum=0.9, foreach=True),
    "sgd-fused": partial(torch.optim.SGD, lr=TINY, momentum=0.9, fused=True),
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
