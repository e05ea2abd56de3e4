"""A target as a remedy gets it: a model with gradients, measured by the monitor."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from gradguard.evidence.running import NormWindow
from gradguard.evidence.stats import StepStats
from gradguard.flow.target import Target
from gradguard.gradients.monitor import Monitor
from gradguard.limits.norm_limit import NO_BASELINE
from gradguard.records import Finding
from gradguard.snapshots.buffer_shadow import BufferShadow
from gradguard.snapshots.ring import Snapshots


class Bag(nn.Module):
    """Parameters p0, p1, ... of ones with the gradients that a test wants; None stands for no gradient."""

    def __init__(self, grads: Sequence[torch.Tensor | None]) -> None:
        super().__init__()
        for index, grad in enumerate(grads):
            template = torch.zeros(2) if grad is None else grad
            param = nn.Parameter(torch.ones(template.shape, dtype=template.dtype))
            param.grad = copy.deepcopy(grad)
            self.register_parameter(f"p{index}", param)


def aim_at(model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int = 0, scale: float = 1.0) -> Target:
    """Return the target of one step.

    Args:
        model: its gradients are there already.
        optimizer: of its parameters.
        step: optimizer step.
        scale: loss scale that is still in the gradients.
    """
    monitor = Monitor(model, optimizer, ["*"])
    stats = StepStats(len(monitor.table))
    stats.step = step
    target = Target(model, optimizer, stats)
    target.params, target.table = monitor.params, monitor.table
    target.gradient_scale = scale
    stats.lr = float(optimizer.param_groups[0]["lr"])
    monitor.measure(stats, 1.0 / scale)
    return target


def aim(*grads: torch.Tensor | None, scale: float = 1.0) -> Target:
    """Return a target with these gradients."""
    model = Bag(grads)
    return aim_at(model, torch.optim.SGD(model.parameters(), lr=0.1), scale=scale)


def keep_state(target: Target) -> None:
    """Give a target what rollbacks need, with a snapshot of the state as it is."""
    target.buffers = BufferShadow(target.model)
    target.snapshots = Snapshots(target.model, target.optimizer, 10, 0.9)
    target.snapshots.take(target.stats.step, {}, is_confirmed=True)


def remember(target: Target, levels: Sequence[float], size: int = 50) -> None:
    """Fill a rolling window of a target with steps of these (P + 1,) norms."""
    window = NormWindow(len(levels), size)
    for _ in range(size):
        window.push(np.array(levels, dtype=np.float32))
    target.stats.windows = {**target.stats.windows, size: window}


def finding_about(*rows: int, is_against_median: bool = True) -> Finding:
    """Return a finding about some parameters, or the whole when none is given.

    Args:
        rows: the parameters.
        is_against_median: the rolling median is a measure of what is normal.
    """
    evidence = {} if is_against_median else {NO_BASELINE: 1}
    return Finding(diagnosis="exploding_gradient", step=0, evidence=evidence, indices=rows)


def grads_of(target: Target) -> list[torch.Tensor | None]:
    return [param.grad for param in target.params]
