"""Where two runs differ first, quantity by quantity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradguard.audit.read import Run
from gradguard.compare.align import Alignment
from gradguard.records import Frozen


# In the order in which a step makes them: what differs first at the same step is the cause of what comes behind it.
BEFORE = ("lr", "lr_factor", "loss_scale", "loss")
AFTER = ("global_norm", "clip_coef", "flags")
NORMS = "norms"
QUANTITIES = (*BEFORE, NORMS, *AFTER)
BLOCK_BYTES = 8 * 1024 * 1024
MOST_PARAMETERS = 16  # named in one difference; the count is always exact


class Difference(Frozen):
    """The first step at which one quantity differs.

    Args:
        quantity: one of `QUANTITIES`.
        step: optimizer step.
        a: value in the first run; of "norms" that of the parameter that differs most.
        b: value in the second.
        relative: |a - b| / max(|a|, |b|), in [0, 2]; None when one of them is not finite.
        parameters: of "norms" the parameters that differ, the largest relative difference first; at most
            `MOST_PARAMETERS`.
        num_parameters: how many differ.
    """

    quantity: str
    step: int
    a: float
    b: float
    relative: float | None
    parameters: tuple[str, ...] = ()
    num_parameters: int = 0


def first_differences(
    run_a: Run, run_b: Run, where: Alignment, parameters: Sequence[str], rtol: float = 0.0
) -> tuple[Difference, ...]:
    """Return the first difference of each quantity that differs at all, in the order of steps and causes.

    Args:
        run_a: the first run.
        run_b: the second.
        where: their common steps.
        parameters: names of those that both have.
        rtol: relative difference up to which two numbers are the same; 0 for the same bits. NaN is the same as NaN.
    """
    found = [
        difference for name in (*BEFORE, *AFTER) if (difference := _scalar(run_a, run_b, where, name, rtol)) is not None
    ]
    norms = _norms(run_a, run_b, where, parameters, rtol)
    found += [norms] if norms is not None else []
    return tuple(sorted(found, key=lambda one: (one.step, QUANTITIES.index(one.quantity))))


def differs(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], rtol: float) -> npt.NDArray[np.bool_]:
    """Return where two arrays differ; NaN is the same as NaN, and an infinity only as itself."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    is_same = (left == right) | (np.isnan(left) & np.isnan(right))
    if rtol > 0:
        with np.errstate(invalid="ignore", over="ignore"):
            is_near = np.abs(left - right) <= rtol * np.maximum(np.abs(left), np.abs(right))
        is_same |= is_near & np.isfinite(left) & np.isfinite(right)
    return np.asarray(~is_same)


def relative_difference(a: float, b: float) -> float | None:
    """Return |a - b| / max(|a|, |b|); None when one of them is not finite.

    Example:
        >>> relative_difference(1.0, 4.0), relative_difference(0.0, 0.0), relative_difference(1.0, float("nan"))
        (0.75, 0.0, None)
    """
    if not (np.isfinite(a) and np.isfinite(b)):
        return None
    largest = max(abs(a), abs(b))
    return abs(a / largest - b / largest) if largest else 0.0


def _scalar(run_a: Run, run_b: Run, where: Alignment, name: str, rtol: float) -> Difference | None:
    a, b = run_a.statistics[name][where.rows_a], run_b.statistics[name][where.rows_b]
    at = np.flatnonzero(differs(a, b, 0.0 if name == "flags" else rtol))
    if not len(at):
        return None
    left, right = float(a[at[0]]), float(b[at[0]])
    step = int(where.steps[at[0]])
    return Difference(quantity=name, step=step, a=left, b=right, relative=relative_difference(left, right))


def _norms(run_a: Run, run_b: Run, where: Alignment, parameters: Sequence[str], rtol: float) -> Difference | None:
    columns_a, columns_b = (
        [places[name] for name in parameters]
        for places in ({name: place for place, name in enumerate(run.parameters)} for run in (run_a, run_b))
    )
    at_once = max(1, BLOCK_BYTES // (4 * max(1, len(run_a.parameters), len(run_b.parameters))))
    for start in range(0, len(where.steps) if parameters else 0, at_once):
        part = slice(start, start + at_once)
        a = _rows(run_a, where.rows_a[part])[:, columns_a]
        b = _rows(run_b, where.rows_b[part])[:, columns_b]
        is_other = differs(a, b, rtol)
        rows = np.flatnonzero(is_other.any(axis=1))
        if len(rows):
            first = rows[0]
            return _at(int(where.steps[start + first]), a[first], b[first], is_other[first], parameters)
    return None


def _at(
    step: int,
    a: npt.NDArray[np.float32],
    b: npt.NDArray[np.float32],
    is_other: npt.NDArray[np.bool_],
    parameters: Sequence[str],
) -> Difference:
    def rank(place: int) -> float:
        size = relative_difference(float(a[place]), float(b[place]))
        return -np.inf if size is None else -size

    places = sorted(map(int, np.flatnonzero(is_other)), key=rank)
    left, right = float(a[places[0]]), float(b[places[0]])
    return Difference(
        quantity=NORMS,
        step=step,
        a=left,
        b=right,
        relative=relative_difference(left, right),
        parameters=tuple(parameters[place] for place in places[:MOST_PARAMETERS]),
        num_parameters=len(places),
    )


def _rows(run: Run, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the norms of rows that are near each other, in their order."""
    low, high = int(rows.min()), int(rows.max()) + 1
    if high - low <= 2 * len(rows):
        return run.statistics.norms_between(low, high)[rows - low]
    return np.concatenate([run.statistics.norms_between(int(row), int(row) + 1) for row in rows])
