"""The device's part of a step, taken without the host: skip it, or clip the gradients, by thresholds known before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradguard.evidence.trigger import Trigger
from gradguard.flow.foresight import Plan


@dataclass
class DeviceVerdict:
    """What the device decides about one step; nothing here waits for it.

    Args:
        is_skipped: () bool; None when the plan skips nothing.
        factor: () float64, what the gradients are to be multiplied by, 1 where nothing is due; None when the plan
            clips nothing.
    """

    is_skipped: Tensor | None = None
    factor: Tensor | None = None


@torch.no_grad()
def take_verdict(plan: Plan, norms: Tensor, loss: Tensor | None) -> DeviceVerdict:
    """Return what a plan comes to on the numbers of this step.

    Args:
        plan: thresholds and limits, as numbers of the host.
        norms: (n,) float32, the gradient norm of every parameter that has one.
        loss: () on the same device, None when none was observed or when the host has judged it.

    Example:
        >>> plan = Plan(skips=[Trigger("nonfinite")], clips=[[(Trigger("global_norm", 4.0), 1.0)]])
        >>> verdict = take_verdict(plan, torch.tensor([3.0, 4.0]), None)
        >>> bool(verdict.is_skipped), round(float(verdict.factor), 3)
        (False, 0.2)
    """
    if not plan.skips and not plan.clips:
        return DeviceVerdict()
    wide = torch.float32 if norms.device.type == "mps" else torch.float64
    measured = torch.linalg.vector_norm(norms, dtype=wide)
    is_finite = measured.isfinite()
    skipped: Tensor | None = None
    for trigger in plan.skips:
        fired = _fires(trigger, measured, is_finite, loss)
        if fired is not None:
            skipped = fired if skipped is None else skipped | fired
    factor: Tensor | None = None
    norm = measured
    for alternatives in plan.clips:
        due: Tensor | None = None
        for condition, limit in reversed(alternatives):  # the first that fires has the last word
            fired = is_finite if condition is None else _fires(condition, measured, is_finite, loss)
            if fired is not None:
                # A number over a tensor would be rounded twice: torch multiplies by the reciprocal.
                coefficient = (torch.tensor(limit, dtype=wide) / (norm + 1e-6)).clamp(max=1.0)
                due = torch.where(fired & is_finite, coefficient, 1.0 if due is None else due)
        if due is not None:
            factor = due if factor is None else factor * due
            norm = norm * due
    return DeviceVerdict(skipped, factor)


def _fires(trigger: Trigger, norm: Tensor, is_finite: Tensor, loss: Tensor | None) -> Tensor | None:
    """Return () bool whether a condition holds, None when nothing is known about its quantity."""
    if trigger.quantity == "global_norm":
        return norm.float().to(norm.dtype) > trigger.above
    if trigger.quantity == "loss":
        return None if loss is None else loss > trigger.above
    return ~is_finite if loss is None else ~(is_finite & loss.isfinite())
