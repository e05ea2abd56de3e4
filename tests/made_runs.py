"""Runs recorded by hand, without a training: whatever a reader must cope with can be put into them."""

from __future__ import annotations

import numpy as np
import pytest

from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.statistics import Flag
from gradguard.records import Change, Finding, Intervention, Outcome, Withheld


NAMES = ("wte.weight", "h.0.weight", "h.0.bias")
# A formula, an escape that sets a terminal's title, a line break, markup, formats, a tag, a turn of the direction.
HOSTILE = "=cmd()\x1b]0;pwned\x07\n[red]x[/red]%s{0}<script>\u202e"


STARTED = []


def table(names=NAMES):
    return ParameterTable(list(names), [(2, 2)] * len(names), ["float32"] * len(names), [0] * len(names))


def start_run(path, names=NAMES, policy=None, name=None, versions=None):
    """A run directory that takes rows and records."""
    info = {"policy": policy or {"mode": "enforce"}, "versions": versions or {"torch": "2.13.0"}}
    run = RunDirectory.create(path, name=name, info=info)
    STARTED.append(run)
    run.write_layout(table(names))
    return run


@pytest.fixture(autouse=True)
def close_runs():
    """Let go of the files of runs that a test left open."""
    yield
    while STARTED:
        STARTED.pop().finish()


def add_rows(run, steps, norms=None, **changes):
    """Rows of healthy steps; `norms` and `changes` are values, or functions of the step."""
    num_parameters = len(run.info["layouts"][-1]["parameters"])
    for step in steps:
        values = {"loss": 4 - step / 100, "lr": 0.1, "global_norm": 1.5, "lr_factor": 1.0, "clip_coef": 1.0}
        values |= {"loss_scale": 1.0, "flags": 0}
        values |= {name: value(step) if callable(value) else value for name, value in changes.items()}
        row = norms(step) if callable(norms) else norms
        row = np.arange(1, num_parameters + 1) if row is None else row
        run.statistics.append(step, norms=np.asarray(row, dtype=np.float32), **values)


def act(run, step, diagnosis="exploding_gradient", remedy="clip_norm", parameter=NAMES[1], **changes):
    """An intervention; returns it as written."""
    finding = Finding(
        diagnosis=diagnosis,
        step=step,
        statistic="gradient norm",
        value=300.0,
        baseline=1.0,
        threshold=20.0,
        parameters=(parameter,),
        num_parameters=2,
        message=f"The gradient norm of {parameter} is 300 times its usual 1.",
    )
    fields = {"rule": "r", "change": Change(summary="300 -> 3", before={"n": 300.0}, after={"n": 3.0}), **changes}
    record = Intervention(step=step, diagnosis=diagnosis, remedy=remedy, finding=finding, **fields)
    return run.journal.append(record, durable=False)


def withhold(run, step, reason="cooldown", diagnosis="exploding_gradient", remedy="stop", **changes):
    record = Withheld(step=step, rule="s", diagnosis=diagnosis, remedy=remedy, reason=reason, **changes)
    return run.journal.append(record, durable=False)


def judge(run, record, step, verdict="helped", reason="it did not come back"):
    outcome = Outcome(
        step=step,
        of=record.seq,
        verdict=verdict,
        horizon=step - record.step,
        reason=reason,
        loss_before=4.0,
        loss_after=3.0,
    )
    return run.journal.append(outcome, durable=False)


ACTED = Flag.FINDING | Flag.INTERVENTION
