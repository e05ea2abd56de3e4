"""The full statistics of every gradient, now and then, into the record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gradguard.evidence.stats import StepStats
from gradguard.gradients.columns import gradient_columns
from gradguard.gradients.full_statistics import finish, refine
from gradguard.gradients.monitor import Monitor
from gradguard.gradients.transfer import Transfer
from gradguard.policy.schema import MonitorOptions
from gradguard.probes.entry_sample import NUM_SAMPLED
from gradguard.record.recorder import Recorder


class Read(Protocol):
    """Takes in the numbers of a probe that was launched."""

    def __call__(self, stats: StepStats, is_late: bool) -> None:
        """Wait for them and record them, with the norms in the step's stats.

        Late, the gradients are gone and what float32 lost stays lost.
        """


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

    def take(self, step: int, monitor: Monitor, stats: StepStats, factor: float) -> None:
        """Measure the gradients as they are, if this is a step for it, and record them times `factor`.

        Args:
            step: number of the step.
            monitor: gives the gradients.
            stats: of the step; the norms in it are of the gradients times `factor`.
            factor: inverse of a loss scale that is still in the gradients.
        """
        if (read := self.launch(step, monitor, factor)) is not None:
            read(stats, is_late=False)

    def launch(self, step: int, monitor: Monitor, factor: float) -> Read | None:
        """Start to measure, if this is a step for it; return what waits for the numbers and records them.

        Sharded gradients are left out: most statistics would need them gathered from all ranks.
        """
        if self._is_off:
            self.next_step = sys.maxsize
            return None
        self.next_step = (step // self._every + 1) * self._every
        if step % self._every or not self._recorder.has_rows or monitor.is_sharded:
            return None
        try:
            grads = monitor.grads()
            parts = gradient_columns(grads, step, self._sample, factor, has_norms=True)
            transfers = [Transfer({"columns": part.values}) for part in parts]
        except Exception as error:
            self._give_up(error)
            return None

        def read(stats: StepStats, is_late: bool) -> None:
            try:
                columns = [
                    t.read()["columns"].reshape(part.values.shape) for t, part in zip(transfers, parts, strict=True)
                ]
                found = finish(monitor.table.names, list(zip(parts, columns, strict=True)), _norms(stats))
                if not is_late:
                    refine(found, grads, self._sample, factor)
                is_absent = np.array([grad is None for grad in grads], dtype=bool)
                self._recorder.gradients(step, found._asdict(), is_absent)
            except Exception as error:
                self._give_up(error)

        return read

    def _give_up(self, error: Exception) -> None:
        self._is_off = True
        self._on_fault("taking the statistics of gradients", error)


def _norms(stats: StepStats) -> npt.NDArray[np.float64]:
    """Return (P,) norms, with those that float32 cannot hold."""
    norms = stats.norms.astype(np.float64)
    for row, norm in stats.exact_norms.items():
        norms[row] = norm
    return norms
