"""Who is best in a cell, and who is within noise of best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from benchmarks.league.run import Run


TOLERANCE = 0.01  # of the best loss
NUM_ERRORS = 2.0  # standard errors of the difference of two means


@dataclass(frozen=True)
class Place:
    """Where one entrant stands in one cell, over the seeds.

    Args:
        final: mean loss on held-out data; infinite as soon as one seed is broken.
        error: standard error of that mean; 0 with one seed.
        steps_lost: mean over the seeds.
        interventions: mean over the seeds.
        is_best: no one's mean is lower.
        is_near: best, or within noise of the best.
        stopped: seeds that the guard ended.
    """

    final: float
    error: float
    steps_lost: float
    interventions: float
    is_best: bool
    is_near: bool
    stopped: int


Standing = dict[tuple[str, str, str], Place]  # by task, condition, entrant


def standing(runs: Sequence[Run]) -> Standing:
    """Return every entrant's place in every cell."""
    cells: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        cells.setdefault((run.task, run.condition), {}).setdefault(run.entrant, []).append(run)
    return {(*cell, name): place for cell, own in cells.items() for name, place in _places(own).items()}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; a value that is not finite makes the mean infinite.

    Example:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
        >>> mean_and_error([1.0, float("nan")])
        (inf, 0.0)
    """
    if not all(map(math.isfinite, values)):
        return math.inf, 0.0
    return fmean(values), math.sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0


def is_within_noise(value: float, error: float, best: float, best_error: float) -> bool:
    """Return whether a mean is within 1 % or within two pooled standard errors of the best one.

    Example:
        >>> is_within_noise(1.009, 0.0, 1.0, 0.0), is_within_noise(1.1, 0.04, 1.0, 0.04), is_within_noise(1.1, 0, 1, 0)
        (True, True, False)
    """
    return value - best <= max(TOLERANCE * abs(best), NUM_ERRORS * math.hypot(error, best_error))


def _places(runs: dict[str, list[Run]]) -> dict[str, Place]:
    means = {name: mean_and_error([run.final for run in own]) for name, own in runs.items()}
    best, best_error = min(means.values())
    return {
        name: Place(
            final=mean,
            error=error,
            steps_lost=fmean(run.steps_lost for run in runs[name]),
            interventions=fmean(run.interventions for run in runs[name]),
            is_best=math.isfinite(mean) and mean == best,
            is_near=math.isfinite(mean) and is_within_noise(mean, error, best, best_error),
            stopped=sum(bool(run.stopped) for run in runs[name]),
        )
        for name, (mean, error) in means.items()
    }
