"""Statistics of every layer over the steps: norms, the numbers of the gradient probes, updates, activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.read import Run
from gradguard.printable import printable
from gradguard.report.names import shown_names
from gradguard.report.sketch import Sketch, sketch, told
from gradguard.report.timeline import Timeline, timeline


NUM_NORM_CELLS = 75_000  # layers x stretches, of the whole page; five numbers of two bytes each
NUM_PROBE_CELLS = 20_000  # likewise, for each of the statistics below
MOST, FEWEST = 500, 8  # stretches
PROBED = ("mean", "std", "max", "zero_ratio")
SEEN = ("dead", "saturated")
Matrix = npt.NDArray[np.floating]


def layer_norms(run: Run, line: Timeline, share: float = 1.0) -> Sketch:
    """Return the gradient norm of every parameter tensor; the whole run is read once, stretch by stretch.

    Args:
        run: whose.
        line: its rows that count.
        share: of the page that it may take, in (0, 1].
    """

    def read(start: int, stop: int) -> Matrix:
        rows = line.rows[start:stop]
        if not len(rows):
            return np.empty((0, len(run.parameters)), dtype=np.float32)
        norms = run.statistics.norms_between(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]]
        return _present(norms, norms)

    return sketch(line.steps, read, len(run.parameters), _stretches(NUM_NORM_CELLS * share, len(run.parameters)))


def probed_statistics(run: Run, share: float = 1.0) -> dict[str, Any]:
    """Return mean, std, max and zero ratio of every parameter's gradient at the probes, {name: sketch}."""
    line = timeline(run.gradients["step"])
    num_buckets = _stretches(NUM_PROBE_CELLS * share, len(run.parameters))

    def told_of(name: str) -> dict[str, Any]:
        def read(start: int, stop: int) -> Matrix:
            rows = line.rows[start:stop]
            if not len(rows):
                return np.empty((0, len(run.parameters)), dtype=np.float32)
            first, end = int(rows[0]), int(rows[-1]) + 1
            values, norms = (run.gradients.between(column, first, end)[rows - first] for column in (name, "norm"))
            return _present(values, norms)

        return told(sketch(line.steps, read, len(run.parameters), num_buckets))

    return {name: told_of(name) for name in PROBED} if len(line.steps) else {}


def update_ratios(run: Run, share: float = 1.0) -> dict[str, Any] | None:
    """Return norm(update) / norm(weight) of every parameter, a sketch; None when no update was looked at."""
    num = len(run.parameters)
    seen = [(at, updates) for at, updates in sorted(run.updates.items()) if len(updates.update_norms) == num]
    if not seen:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = [updates.update_norms.astype(np.float64) / updates.weight_norms for _, updates in seen]
    is_known = np.array([updates.weight_norms > 0 for _, updates in seen])
    ratios = np.where(is_known, np.array(rows), np.nan)
    return told(_of_matrix([at for at, _ in seen], ratios, _stretches(NUM_PROBE_CELLS * share, num)))


def activations(run: Run, share: float = 1.0) -> dict[str, Any] | None:
    """Return the share of dead units and of saturated entries of every place that the probes saw.

    Returns:
        {"places": names, "kinds": as "relu", "dead", "saturated": sketches}; None when nothing was looked at.
    """
    seen = sorted(run.activations.items())
    kinds = {name: kind for _, one in seen for name, kind in zip(one.names, one.kinds, strict=False)}
    if not kinds:
        return None
    column = {name: index for index, name in enumerate(kinds)}
    tables = {name: np.full((len(seen), len(kinds)), np.nan, dtype=np.float32) for name in SEEN}
    for row, (_, one) in enumerate(seen):
        places = [column[name] for name in one.names]
        for name, table in tables.items():
            values = getattr(one, name)
            if len(values) == len(places):
                table[row, places] = values
    at = [step for step, _ in seen]
    num_buckets = _stretches(NUM_PROBE_CELLS * share, len(kinds))
    return {
        "places": shown_names(kinds),
        "kinds": [printable(str(kind)) for kind in kinds.values()],
        **{name: told(_of_matrix(at, table, num_buckets)) for name, table in tables.items()},
    }


def _of_matrix(steps: list[int], values: Matrix, num_buckets: int) -> Sketch:
    line = timeline(np.array(steps, dtype=np.int64))
    table = values[line.rows]
    return sketch(line.steps, lambda start, stop: table[start:stop], table.shape[1], num_buckets)


def _present(values: Matrix, norms: Matrix) -> Matrix:
    """Return values as `sketch` takes them: NaN where there was no gradient, infinity where it is not finite."""
    return np.where(norms == -1, np.nan, np.where(np.isfinite(values), values, np.inf))


def _stretches(num_cells: float, num_series: int) -> int:
    return int(min(max(num_cells // max(1, num_series), FEWEST), MOST))
