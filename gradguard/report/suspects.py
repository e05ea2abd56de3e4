"""What stood out just before a finding that the finding itself does not name: a layer, or the learning rate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradguard.audit.read import Run
from gradguard.report.baseline import WINDOW
from gradguard.report.timeline import Timeline


LEAST_ROWS = 5
LEAST_RATIO = 3.0  # below it nothing stands out
NUM_BEFORE = 5  # steps in which a jump of the learning rate may be what broke the run


class Suspect(NamedTuple):
    """A parameter whose gradient grew more than that of the others.

    Args:
        name: of the parameter.
        ratio: its gradient norm over the median of the steps before; infinite when it is not finite.
    """

    name: str
    ratio: float


class Jump(NamedTuple):
    """A learning rate that rose from one step to the next.

    Args:
        step: the first one with the new rate.
        before: the rate before.
        after: the new rate.
    """

    step: int
    before: float
    after: float


def rate_jump(run: Run, line: Timeline, step: int) -> Jump | None:
    """Return the largest jump of the learning rate in the few steps up to one, None when it rose threefold at none."""
    places = line.places([step])
    if not len(places):
        return None
    start = max(0, int(places[0]) - NUM_BEFORE)
    rows = line.rows[start : int(places[0]) + 1]
    rates = run.statistics["lr"][rows].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(rates[:-1] > 0, rates[1:] / rates[:-1], 0.0)
    if not len(ratios) or not ratios.max() >= LEAST_RATIO:
        return None
    worst = int(np.argmax(ratios))
    return Jump(int(line.steps[start + worst + 1]), float(rates[worst]), float(rates[worst + 1]))


def suspect(run: Run, line: Timeline, step: int) -> Suspect | None:
    """Return the parameter whose gradient norm rose most at a step, None when none stands out or that is not known."""
    places = line.places([step])
    if not len(places):
        return None
    place = int(places[0])
    before = line.rows[max(0, place - WINDOW) : place]
    if len(before) < LEAST_ROWS:
        return None
    start = int(before[0])
    norms = run.statistics.norms_between(start, int(line.rows[place]) + 1)
    here, past = norms[-1].astype(np.float64), norms[before - start].astype(np.float64)
    past[~(np.isfinite(past) & (past > 0))] = np.nan
    is_known = ~np.isnan(past).all(axis=0) & (here != -1)
    if not is_known.any():
        return None
    usual = np.nanmedian(past[:, is_known], axis=0)
    ratios = np.where(np.isfinite(here[is_known]), here[is_known] / usual, np.inf)
    worst = int(np.argmax(ratios))
    if not ratios[worst] >= LEAST_RATIO:
        return None
    return Suspect(run.parameters[int(np.flatnonzero(is_known)[worst])], float(ratios[worst]))
