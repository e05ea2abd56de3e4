"""The layer that stood out at a finding that names none."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradguard.audit.read import Run
from gradguard.report.baseline import WINDOW
from gradguard.report.timeline import Timeline


LEAST_ROWS = 5
LEAST_RATIO = 3.0  # below it nothing stands out


class Suspect(NamedTuple):
    """A parameter whose gradient grew more than that of the others.

    Args:
        name: of the parameter.
        ratio: its gradient norm over the median of the steps before; infinite when it is not finite.
    """

    name: str
    ratio: float


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
