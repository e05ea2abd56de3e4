"""Optimizers that evaluate their closure many times within one step, such as LBFGS."""

from __future__ import annotations

from torch.optim import LBFGS, Optimizer

from gradguard.flow import aside
from gradguard.flow.pipeline import Pipeline
from gradguard.snapshots.snapshot import Snapshot


class InnerEvaluations:
    """Makes a step with many evaluations as trace-free to skip as one with a single gradient.

    The step's first gradient is judged like any other. What happens at the later evaluations cannot be stopped from
    outside, so the state at the start of the step is kept and comes back when the step was skipped, or when it ended in
    parameters that are not finite.

    Args:
        pipeline: judges and acts.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._start: Snapshot | None = None

    @staticmethod
    def is_needed(optimizer: Optimizer) -> bool:
        """Return whether an optimizer evaluates its closure more than once a step."""
        return isinstance(optimizer, LBFGS)

    def begin(self) -> None:
        """Keep the state that the step starts from."""
        target = self._pipeline.target
        self._start = Snapshot(self._pipeline.step, target.model, target.optimizer, {})

    def end(self) -> None:
        """Judge how the step ended, and take it back if it must not stand."""
        start, self._start = self._start, None
        target = self._pipeline.target
        if start is None:
            return
        if not target.is_skipped and self._pipeline.monitor.nonfinite_parameters():
            aside.judge_broken_step(self._pipeline)
        if target.is_skipped and target.restored is None:
            start.restore(target.model, target.optimizer)
