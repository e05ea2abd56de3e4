"""One verdict for all ranks: the loss that they judge is the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradguard.evidence.stats import StepStats


class Exchange:
    """Replaces every rank's own loss by the mean over ranks, with one small all-gather a step.

    Gradients need no exchange: in data parallel training they are reduced before the step, and the norms of sharded
    ones are. The loss is each rank's own; judged alone, ranks would skip different steps.

    Args:
        device: where the collective's tensors live.
    """

    def __init__(self, device: torch.device) -> None:
        self._mine = torch.zeros(3, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        self._all = [torch.zeros_like(self._mine) for _ in range(dist.get_world_size())]

    @staticmethod
    def is_needed() -> bool:
        """Return whether this process is one of several ranks."""
        return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def gather(self, losses: Sequence[Any], is_on: bool = True) -> Tensor:
        """Return what every rank says, (ranks, 3): its loss, whether it observed one, whether its guard is at work.

        Args:
            losses: observed by this rank for this step; numbers or one-element tensors.
            is_on: this rank's guard judges the step.
        """
        self._mine.zero_()
        for loss in losses:
            self._mine[0] += (loss.reshape(()).to(self._mine) if isinstance(loss, Tensor) else loss) / len(losses)
        self._mine[1], self._mine[2] = float(bool(losses)), float(is_on)
        dist.all_gather(self._all, self._mine)
        return torch.stack(self._all)


def mean_over_ranks(said: Tensor) -> Tensor:
    """Return the mean of the observed losses of what `Exchange.gather` returned, () on its device.

    When nobody observed one it is the lowest number there is, which no threshold is below.

    Example:
        >>> mean_over_ranks(torch.tensor([[1.0, 1, 1], [0.0, 0, 1], [3.0, 1, 1]]))
        tensor(2.)
    """
    observed = said[:, 1] > 0
    total = torch.where(observed, said[:, 0], 0.0).sum()
    return torch.where(observed.any(), total / observed.sum(), torch.finfo(said.dtype).min)


def take_in(said: Sequence[Sequence[float]], stats: StepStats) -> tuple[int, ...]:
    """Set `stats.loss`, `stats.has_loss` and `stats.bad_ranks` from what all ranks say; return those that are off."""
    losses = [loss for loss, has_loss, _ in said if has_loss]
    stats.bad_ranks = tuple(rank for rank, (loss, _, _) in enumerate(said) if not math.isfinite(loss))
    stats.has_loss = bool(losses)
    stats.loss = sum(losses) / len(losses) if losses else math.nan
    return tuple(rank for rank, (_, _, is_on) in enumerate(said) if not is_on)


def is_main_rank() -> bool:
    """Return whether this process writes the record: rank 0, or the only one."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
