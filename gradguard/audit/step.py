"""Everything that is recorded about one step."""

from __future__ import annotations

import numpy as np

from gradguard.audit.rate_jump import Jump, rate_jump
from gradguard.audit.read import Run
from gradguard.errors import RecordError
from gradguard.record.gradients import NUMBERS
from gradguard.record.statistics import Flag
from gradguard.records import Event, Frozen, Intervention, Outcome, Withheld


NEIGHBOURS = 3  # steps shown before and after
TOP = 8  # parameters shown


class StepRow(Frozen):
    """The statistics of one step.

    Args:
        step: optimizer step.
        loss: NaN when none was observed.
        lr: learning rate without the guard's factor.
        effective_lr: with it: what torch stepped with.
        global_norm: of the gradient, before any clip.
        clip_coef: what the gradient was multiplied by.
        loss_scale: of the GradScaler, 1 without one.
        flags: names of the flags that are set.
    """

    step: int
    loss: float
    lr: float
    effective_lr: float
    global_norm: float
    clip_coef: float
    loss_scale: float
    flags: tuple[str, ...]


class ParameterNorms(Frozen):
    """Gradient norms of one parameter at the steps of `StepReport.rows`; None where it had no gradient."""

    name: str
    norms: tuple[float | None, ...]


class GradientRow(Frozen):
    """Full statistics of one parameter's gradient at the probe nearest to the step; shares are of its entries."""

    name: str
    mean: float
    std: float
    max: float
    min: float
    zero_ratio: float
    norm: float


class StepReport(Frozen):
    """Everything that is recorded about one step.

    Args:
        path: the run directory.
        step: the step.
        row: its statistics; None when the record names the step but its statistics were lost.
        rows: statistics of the steps around it and of itself.
        parameters: the parameters with the largest norms at the step, non-finite ones first.
        num_parameters: how many parameters there are.
        probe_step: the probe of gradients at the step, or the last one before; None when there is none.
        gradients: its statistics of the parameters above.
        records: what was found, done (with its outcome) and not done at the step.
        jump: of the learning rate, at the step or a few before it; None when there was none.
        is_empty: the run has no step at all.
    """

    path: str
    step: int
    row: StepRow | None
    rows: tuple[StepRow, ...]
    parameters: tuple[ParameterNorms, ...]
    num_parameters: int
    probe_step: int | None
    gradients: tuple[GradientRow, ...]
    records: tuple[Intervention | Withheld | Event, ...]
    jump: Jump | None = None
    is_empty: bool = False


def notable_steps(run: Run) -> list[int]:
    """Return the steps at which something was done; where nothing ever was, those at which something was found.

    Args:
        run: whose journal is looked at.
    """
    done = sorted({record.step for record in run.interventions})
    return done or sorted({finding.step for finding in run.findings})


def describe_step(run: Run, step: int) -> StepReport:
    """Return everything that is recorded about a step; of a step recorded twice (after a resume), the last time.

    Raises:
        RecordError: the step is not in the record; the message says which are.
    """
    steps = run.statistics["step"]
    places = np.flatnonzero(steps == step)
    here = [record for record in run.records if record.step == step and not isinstance(record, Outcome)]
    if not len(places) and not here:
        known = f"steps {steps.min()} to {steps.max()}" if len(steps) else "no steps"
        raise RecordError(f"{run.path}: step {step} is not in the record, which holds {known}")
    rows = range(0)
    if len(places):
        rows = range(max(0, places[-1] - NEIGHBOURS), min(len(steps), places[-1] + NEIGHBOURS + 1))
    table = [_row(run, index) for index in rows]
    parameters = _top(run, int(places[-1]), rows) if len(places) else ()
    probe = _probe_before(run, step)
    return StepReport(
        path=str(run.path),
        step=step,
        row=_row(run, int(places[-1])) if len(places) else None,
        rows=tuple(table),
        parameters=parameters,
        num_parameters=len(run.parameters),
        probe_step=None if probe is None else int(run.gradients["step"][probe]),
        gradients=() if probe is None else _gradients(run, probe, parameters),
        records=tuple(here),
        jump=rate_jump(steps, run.statistics["lr"], step),
        is_empty=not len(steps),
    )


def _row(run: Run, index: int) -> StepRow:
    at = {name: run.statistics[name][index] for name in run.statistics if name != "norms"}
    return StepRow(
        step=int(at["step"]),
        loss=float(at["loss"]),
        lr=float(at["lr"]),
        effective_lr=float(at["lr"]) * float(at["lr_factor"]),
        global_norm=float(at["global_norm"]),
        clip_coef=float(at["clip_coef"]),
        loss_scale=float(at["loss_scale"]),
        flags=tuple(flag.name.lower() for flag in Flag if flag.name and int(at["flags"]) & flag),
    )


def _probe_before(run: Run, step: int) -> int | None:
    """Return the row of the latest probe up to a step; of a step probed twice (after a resume), the last time."""
    steps = run.gradients["step"]
    rows = np.flatnonzero(steps <= step)
    return int(rows[steps[rows] == steps[rows].max()][-1]) if len(rows) else None


def _gradients(run: Run, probe: int, parameters: tuple[ParameterNorms, ...]) -> tuple[GradientRow, ...]:
    columns = {parameter.name: run.parameters.index(parameter.name) for parameter in parameters}
    return tuple(
        GradientRow(name=name, **{number: float(run.gradients[number][probe, column]) for number in NUMBERS})
        for name, column in columns.items()
        if not run.gradients["norm"][probe, column] < 0
    )


def _top(run: Run, index: int, rows: range) -> tuple[ParameterNorms, ...]:
    norms = run.statistics.norms_between(rows.start, rows.stop)
    here = norms[index - rows.start]
    rank = np.where(np.isfinite(here), here, np.inf)
    largest = [int(column) for column in np.argsort(-rank, kind="stable")[:TOP] if not here[column] < 0]
    return tuple(
        ParameterNorms(
            name=run.parameters[column],
            norms=tuple(None if norm < 0 else float(norm) for norm in norms[:, column]),
        )
        for column in largest
    )
