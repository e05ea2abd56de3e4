"""Steps at which surely nothing is wrong: taken in by a few comparisons, and put through the whole flow together later.

After a step at which nothing was found, every diagnosis says within which bounds it will find nothing. A step within
all of them is only noted. A few steps later, or when anyone asks, those that were noted are handed to diagnoses,
rolling statistics and record one after the other, in order: what is decided and written is the same, but the code
that does it runs once in a while, and then with everything it needs in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import gt
from typing import TYPE_CHECKING, Any

import numpy as np

from gradguard.evidence.stats import FloatArray
from gradguard.flow.mean_loss import mean_loss
from gradguard.functional import FEW, FLOAT32_MAX, sum_up


if TYPE_CHECKING:
    from gradguard.flow.pipeline import Pipeline


MAX_PAUSE = 31  # steps
_Noted = tuple[int, float, float, FloatArray, float]  # step, loss, lr, norms, global norm


class QuietSteps:
    """Takes quiet steps in.

    Args:
        pipeline: whose steps they are.

    Attributes:
        left: steps that may still be taken in before one goes through the whole flow.
        is_last: the last step was taken in here.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._noted: list[_Noted] = []
        self.left = 0
        self.is_last = False
        self._pause = 0  # steps to go without noting, after a step that could not be noted: doubled each time
        self._num_paused = 0

    def arm(self) -> None:
        """Learn from all that the pipeline knows after a step which of the next ones may be taken in."""
        pipeline, stats = self._pipeline, self._pipeline.stats
        self.left = 0
        self.is_last = False
        if self._num_paused < self._pause:
            self._num_paused += 1
            return
        if pipeline.policy.monitor.sync != "immediate":
            return
        if pipeline.findings or pipeline.target.effects or pipeline.pace is not None:
            return
        if pipeline.scale.is_used or pipeline.monitor.packs_loss or not (stats.is_plain and stats.is_quiet()):
            return
        probes, next_due = pipeline.probes, pipeline.gradient_probe.next_step
        if probes is not None:
            next_due = min(next_due, probes.next_due)
            if probes.is_waited_for():
                return
        self._limit = pipeline.routine.idle_below(pipeline.target)
        calm = pipeline.judgement.calm(stats) if stats.global_norm <= self._limit else None
        if calm is None:
            return
        self.left = min(calm.steps, next_due - pipeline.step - 1)
        self._has_loss = stats.has_loss
        self._loss_above, self._loss_most, self._reach = calm.loss_above, calm.loss_most, calm.reach
        self._limits: Any = None
        if calm.levels is not None:
            self._limit = min(self._limit, float(calm.levels[0]))
            self._limits = calm.levels[1:].tolist() if len(calm.levels) <= FEW else calm.levels[1:]

    def disarm(self) -> None:
        """Let the next step go through the whole flow."""
        self.left = 0

    def take(self, losses: Sequence[Any]) -> bool:
        """Take the step that comes in if it is surely quiet; return whether it was."""
        self.is_last = self._is_noted(losses)
        if self.is_last:
            self._pause = 0
        else:
            self._pause, self._num_paused = min(2 * self._pause + 1, MAX_PAUSE), 0
        return self.is_last

    def _is_noted(self, losses: Sequence[Any]) -> bool:
        pipeline = self._pipeline
        monitor = pipeline.monitor
        if pipeline.watch.is_stale or hasattr(monitor.optimizer, "grad_scale") or monitor.has_new_layout():
            return False
        probes = pipeline.probes
        if probes is not None and probes.is_looking and probes.launch(pipeline.step):
            return False
        loss = mean_loss(losses) if losses else math.nan
        if self._has_loss is not bool(losses) or (losses and not self._loss_above < loss <= self._loss_most):
            return False
        norms = monitor.plain_norms()
        if norms is None:
            return False
        lr = pipeline.lr()
        limits = self._limits
        if len(norms) <= FEW:
            values = norms.tolist()
            total, is_plain = math.hypot(*values), min(values, default=0.0) > 0.0
            is_within = limits is None or not any(map(gt, values, limits))
        else:
            total, is_plain = sum_up(norms)
            is_within = limits is None or not np.count_nonzero(norms > limits)
        if not (is_plain and is_within and total <= self._limit and lr * total <= self._reach and total < math.inf):
            return False
        variances = pipeline.target.variances
        if variances is not None and not variances.look(pipeline.stats):
            return False
        self._noted.append((pipeline.step, loss, lr, norms, total))
        self.left -= 1
        return True

    def settle(self) -> None:
        """Put what was noted through the whole flow."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        pipeline, stats = self._pipeline, self._pipeline.stats
        for stats.step, stats.loss, stats.lr, norms, stats.global_norm in noted:
            stats.norms[:] = norms
            stats.levels[0] = min(stats.global_norm, FLOAT32_MAX)
            pipeline.judgement.pass_by(stats)
            if pipeline.probes is not None:
                pipeline.probes.pass_by(stats.lr)
            pipeline.learn_and_record(0)
