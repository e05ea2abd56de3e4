"""What torch's GradScaler does to gradients and steps, as seen from a step hook.

A plain optimizer's step() is not called at all when the scaler finds an overflow, so its skips are noticed afterwards,
by the fall of the scale. A fused optimizer's is called: gradients may still carry the scale then, and `found_inf` says
that the kernel will not apply the step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import Optimizer

from gradguard.evidence.stats import StepStats


class LossScale:
    """Follows one GradScaler.

    Args:
        scaler: the one that the training uses, or None; without it only a fused optimizer's skips are seen.
    """

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.is_used = self._scaler is not None
        self.last_scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._num_foreseen = 0
        self.skips = 0
        self._is_settled = False
        self._is_applied = False

    def missed_skips(self, is_every_step_observed: bool = False) -> int:
        """Return how often the scaler skipped a step since the last call without the step hook being called.

        Args:
            is_every_step_observed: this is called once for every iteration of the loop, so that a scale that fell
                although the step was applied fell for another optimizer's sake.
        """
        if self._scaler is None:
            return 0
        scale, last = self._scaler.get_scale(), self.last_scale
        self.last_scale = scale
        is_applied, self._is_applied = self._is_applied, False
        if not 0 < scale < last or (is_every_step_observed and is_applied):
            return 0
        drops = max(1, round(math.log(last / scale) / -math.log(self._scaler.get_backoff_factor())))
        missed = max(0, drops - self._num_foreseen)
        self._num_foreseen = 0
        self._count(missed)
        return missed

    def has_unseen_skip(self) -> bool:
        """Return whether the scaler lowered its scale since this was last read, and no step of this optimizer came."""
        return self._scaler is not None and not self._is_applied and self._scaler.get_scale() < self.last_scale

    def _count(self, skips: int) -> None:
        """Count skips in a row; those before the first applied step are the scaler finding its scale."""
        if self._is_settled:
            self.skips += skips

    def read(self, optimizer: Optimizer, stats: StepStats) -> float:
        """Fill the stats about the scale; return the factor that undoes the scale that is in the gradients."""
        grad_scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        stats.found_inf = found_inf is not None and bool(found_inf)
        scale = self.last_scale if self._scaler is not None else 1.0
        inverse = 1.0
        if grad_scale is not None:
            scale = float(grad_scale)
            inverse = 1.0 / scale
        if stats.found_inf:
            self._count(1)
            self._num_foreseen += 1
        stats.loss_scale = scale
        stats.scaler_skips = self.skips
        return inverse

    def after_step(self, stats: StepStats) -> None:
        """Count afresh after a step that the scaler let through."""
        if not stats.found_inf:
            self.skips = 0
            self._is_settled = self._is_applied = True

    def read_again(self) -> None:
        """Take the scale as it is now: one that was put back has not fallen because of an overflow."""
        if self._scaler is not None:
            self.last_scale = self._scaler.get_scale()

    def state_dict(self) -> dict[str, Any]:
        """Return what is counted."""
        return {
            "skips": self.skips,
            "last_scale": self.last_scale,
            "num_foreseen": self._num_foreseen,
            "is_settled": self._is_settled,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from a saved state."""
        self.skips, self.last_scale = int(state["skips"]), float(state["last_scale"])
        self._num_foreseen = int(state["num_foreseen"])
        self._is_settled = bool(state["is_settled"])
