"""What people put into a training loop by hand: a clip, or a clip, a check and a scheduler."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from benchmarks.zoo.recorder import EPOCH


MAX_NORM = 1.0
PATIENCE = 2  # epochs without progress; the usual ten would never end within these runs
FACTOR = 0.1  # torch's own default


class Clip:
    """`clip_grad_norm_` before every step.

    Args:
        optimizer: whose parameters are clipped together.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.wasted = 0
        self._handles = [optimizer.register_step_pre_hook(self._before_step)]

    def observe(self, loss: Tensor) -> None:
        """Take no notice."""

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        self._norm = torch.nn.utils.clip_grad_norm_(_trained(optimizer), MAX_NORM)


class ClipSkipPlateau(Clip):
    """The same, without steps whose gradient is not finite, and with a learning rate that falls on a plateau.

    The scheduler is told the mean loss of every epoch, of `EPOCH` steps; a loss that is not finite is left out of it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self._plateau = ReduceLROnPlateau(optimizer, factor=FACTOR, patience=PATIENCE)
        self._handles.append(optimizer.register_step_post_hook(self._after_step))
        self._losses: list[float] = []
        self._steps = 0

    def observe(self, loss: Tensor) -> None:
        """Take the loss into the mean of its epoch."""
        if loss.isfinite():
            self._losses.append(loss.item())

    def _before_step(self, optimizer: Optimizer, *arguments: object) -> None:
        super()._before_step(optimizer, *arguments)
        if not self._norm.isfinite():
            self.wasted += 1
            for parameter in _trained(optimizer):
                parameter.grad = None

    def _after_step(self, *_: object) -> None:
        self._steps += 1
        if self._steps % EPOCH == 0 and self._losses:
            self._plateau.step(sum(self._losses) / len(self._losses))
            self._losses.clear()


def _trained(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
