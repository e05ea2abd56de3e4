"""The weather: what goes wrong in a run, as data. What is drawn depends on the seed alone, not on the guard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradguard.faults import Fault


BAD_VALUES = 1e3  # factor on everything that enters the first layer
DEGREES_OF_FREEDOM = 1.5  # of the noise: a mean, but no variance


@dataclass(frozen=True)
class Condition:
    """What is different from a clean run.

    Args:
        title: a few short words, the head of a column.
        num_bad: bad batches: huge but finite inputs with random labels; one strikes half-way.
        bad_share: bad batches as a share of all, struck at random after the warm-up.
        rate: factor on the learning rate at every step.
        spike: factor on the learning rate of one step, half-way.
        noise: scale of Student's t noise on every gradient entry, times the root mean square of its tensor.
        level: factor on the loss from half-way on.
        bf16: whether the forward pass is computed in bfloat16.
    """

    title: str
    num_bad: int = 0
    bad_share: float = 0.0
    rate: float = 1.0
    spike: float = 1.0
    noise: float = 0.0
    level: float = 1.0
    bf16: bool = False

    def bad_steps(self, seed: int, num_steps: int) -> frozenset[int]:
        """Return the steps whose batch is bad.

        Example:
            >>> sorted(Condition("", num_bad=1).bad_steps(0, 300))
            [150]
            >>> len(Condition("", bad_share=0.01).bad_steps(0, 300))
            3
        """
        if self.num_bad:
            return frozenset(range(num_steps // 2, num_steps // 2 + self.num_bad))
        if not self.bad_share:
            return frozenset()
        count = max(1, round(self.bad_share * num_steps))
        later = np.arange(num_steps // 10, num_steps)
        return frozenset(np.random.default_rng(seed).choice(later, count, replace=False).tolist())

    def faults(self, seed: int, num_steps: int, entrance: str) -> tuple[Fault, ...]:
        """Return what is injected through hooks: the huge values, and the spike of the learning rate."""
        bad = self.bad_steps(seed, num_steps)
        values = (Fault("scale", "batch", at=sorted(bad), factor=BAD_VALUES, module=entrance),) if bad else ()
        rates = (Fault("scale", "lr", at=num_steps // 2, factor=self.spike),) if self.spike != 1.0 else ()
        return values + rates


CONDITIONS = {
    "clean": Condition("clean"),
    "bad-batch": Condition("one bad batch", num_bad=1),
    "bad-batches": Condition("1 % bad", bad_share=0.01),
    "rate-spike": Condition("rate spike", spike=300.0),
    "rate-x3": Condition("rate x3", rate=3.0),
    "heavy-tails": Condition("heavy tails", noise=0.2),
    "level-shift": Condition("level shift", level=5.0),
    "bf16": Condition("bf16", bf16=True),
}


def wrong_labels(targets: Tensor, num_classes: int, seed: int, step: int) -> Tensor:
    """Return random labels in place of a batch's, of the same shape."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    return torch.randint(num_classes, targets.shape, generator=generator)


def add_noise(params: Iterable[Tensor], scale: float, seed: int, step: int) -> None:
    """Add heavy-tailed noise to every gradient, in place."""
    generator = np.random.default_rng((seed, step))
    for param in params:
        if param.grad is not None:
            size = float(param.grad.square().mean().sqrt())
            noise = generator.standard_t(DEGREES_OF_FREEDOM, param.shape)
            param.grad.add_(torch.as_tensor(noise, dtype=param.grad.dtype), alpha=scale * size)
