"""Loss, learning rate and gradient norm over the steps, as far as a screen can show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.read import Run
from gradguard.record.statistics import Flag
from gradguard.report.baseline import Alarm, level_before
from gradguard.report.downsample import kept_rows, rows_near
from gradguard.report.timeline import Timeline


NUM_BUCKETS = 1500  # of the whole page
REACH = 15  # steps around an intervention that are kept
MAX_NEAR = 6000  # rows kept for that
DIGITS = 5


def curves(run: Run, line: Timeline, alarm: Alarm, num_buckets: int = NUM_BUCKETS) -> dict[str, Any]:
    """Return the columns to draw, one entry a kept step; None where a number is missing or not finite.

    Args:
        run: whose.
        line: its rows that count.
        alarm: see `alarm_of`.
        num_buckets: see `kept_rows`.

    Returns:
        {"step", "loss", "lr", "effective", "norm", "clip": lists, "median", "low", "high": the level before each step,
        "odd": steps whose gradient was not finite, "is_whole": nothing was left out}.
    """
    names = ("loss", "lr", "global_norm", "clip_coef")
    loss, lr, norm, clip = (run.statistics[name][line.rows].astype(np.float64) for name in names)
    effective = lr * run.statistics["lr_factor"][line.rows]
    done = line.places(record.step for record in run.interventions)
    must = np.concatenate([done, rows_near(done, REACH, len(line.steps), MAX_NEAR)])
    kept = kept_rows([loss, lr, effective, norm, clip], must, num_buckets)
    level = level_before(_accepted(run, line, norm), kept, alarm.window)
    columns = {"loss": loss, "lr": lr, "effective": effective, "norm": norm, "clip": clip}
    return {
        "step": line.steps[kept].tolist(),
        **{name: rounded(column[kept]) for name, column in columns.items()},
        "median": rounded(level.median),
        "low": rounded(level.low),
        "high": rounded(level.high),
        "odd": line.steps[kept[~np.isfinite(norm[kept])]].tolist(),
        "is_whole": len(kept) == len(line.steps),
    }


def rounded(values: npt.NDArray[np.floating], digits: int = DIGITS) -> list[float | None]:
    """Return numbers with a few significant digits, None for what is not finite.

    Example:
        >>> rounded(np.array([1.23456789, np.nan, np.inf, 0.0]))
        [1.2346, None, None, 0.0]
    """
    return [float(f"{value:.{digits}g}") if value - value == 0 else None for value in values.tolist()]


def _accepted(run: Run, line: Timeline, norm: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the norms that the level is taken from: a skipped step does not count."""
    flags = run.statistics["flags"][line.rows]
    return np.where(flags & (Flag.SKIPPED_BY_GUARD | Flag.SKIPPED_BY_SCALER), np.nan, norm)
