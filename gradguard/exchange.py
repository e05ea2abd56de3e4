"""One verdict for all ranks: the loss that they judge is the same everywhere."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from gradguard.stats import StepStats


class Exchange:
    """Replaces every rank's own loss by the mean over ranks, with one small all-gather a step.

    Gradients need no exchange: in data parallel training they are reduced before the step, and sharded ones are
    measured whole. The loss is each rank's own; judged alone, ranks would skip different steps.

    Args:
        device: where the collective's tensors live.
    """

    def __init__(self, device: torch.device) -> None:
        self._mine = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        self._all = [torch.zeros_like(self._mine) for _ in range(dist.get_world_size())]

    @staticmethod
    def is_needed() -> bool:
        """Return whether this process is one of several ranks."""
        return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def agree(self, stats: StepStats) -> None:
        """Set `stats.loss`, `stats.has_loss` and `stats.bad_ranks` from all ranks' losses."""
        self._mine[0] = stats.loss if stats.has_loss else 0.0
        self._mine[1] = float(stats.has_loss)
        dist.all_gather(self._all, self._mine)
        pairs = torch.stack(self._all).tolist()
        losses = [loss for loss, has_loss in pairs if has_loss]
        stats.bad_ranks = tuple(rank for rank, (loss, _) in enumerate(pairs) if not math.isfinite(loss))
        stats.has_loss = bool(losses)
        stats.loss = sum(losses) / len(losses) if losses else math.nan


def is_main_rank() -> bool:
    """Return whether this process writes the record: rank 0, or the only one."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
