"""When a step was taken, as far as the record tells."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from gradguard.audit.read import Run


class Clock:
    """Seconds since the epoch by step, interpolated between the records that carry a time.

    Args:
        run: as read.
    """

    def __init__(self, run: Run) -> None:
        moments: dict[int, float] = {}
        last = int(run.statistics["step"][-1]) if run.statistics.num_steps else 0
        for step, time in (
            (0, run.info.get("created")),
            *((record.step, record.time) for record in run.records),
            (last, run.info.get("ended")),
        ):
            seconds = _seconds(time)
            if seconds is not None and abs(step) < 2**63:
                moments[step] = max(seconds, moments.get(step, seconds))
        self._steps = np.array(sorted(moments) or [0], dtype=np.float64)
        times = np.array([moments[step] for step in sorted(moments)] or [0.0])
        self._times = np.maximum.accumulate(times)  # a step that was taken again has the later time

    def time(self, step: int) -> float:
        """Return when a step was taken; before the first record and behind the last, when that was."""
        return float(np.interp(step, self._steps, self._times))


def _seconds(time: Any) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None
