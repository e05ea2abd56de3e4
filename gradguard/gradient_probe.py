"""The full statistics of every gradient, now and then, into the record."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from gradguard.entry_sample import NUM_SAMPLED
from gradguard.full_statistics import measure
from gradguard.monitor import Monitor
from gradguard.policy.schema import MonitorOptions
from gradguard.record.recorder import Recorder


class GradientProbe:
    """Takes the statistics at step 0 and then every `probe_every` steps.

    Args:
        options: how, and how often.
        recorder: takes them.
        on_fault: called with (what failed, error); the probes end there.

    Attributes:
        next_step: `take` is to be called at this step, or at any later one; 0 after the steps were renumbered.
    """

    def __init__(self, options: MonitorOptions, recorder: Recorder, on_fault: Callable[[str, Exception], None]) -> None:
        self._every = options.probe_every
        self._sample = NUM_SAMPLED if options.statistics == "sampled" else None
        self._is_off = options.statistics == "none"
        self._recorder = recorder
        self._on_fault = on_fault
        self.next_step = 0

    def take(self, step: int, monitor: Monitor, factor: float) -> None:
        """Measure the gradients as they are, if this is a step for it, and record them times `factor`."""
        if self._is_off:
            self.next_step = sys.maxsize
            return
        self.next_step = (step // self._every + 1) * self._every
        if step % self._every:
            return
        grads = monitor.grads()
        # Gathering a sharded gradient takes every rank, whether it writes a record or not.
        if not self._recorder.has_rows and not any(hasattr(grad, "full_tensor") for grad in grads):
            return
        try:
            found = measure(monitor.table.names, grads, step, self._sample, factor)
            self._recorder.gradients(step, found._asdict(), np.array([grad is None for grad in grads], dtype=bool))
        except Exception as error:
            self._is_off = True
            self._on_fault("taking the statistics of gradients", error)
