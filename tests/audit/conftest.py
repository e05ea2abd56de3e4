"""A run recorded by hand: everything that reading a record must cope with, without a training."""

import numpy as np
import pytest

from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.statistics import Flag
from gradguard.records import Change, Event, Finding, Intervention, Outcome, Withheld


NAMES = ["wte.weight", "h.0.weight", "h.0.bias"]


def table(names):
    return ParameterTable(list(names), [(2, 2)] * len(names), ["float32"] * len(names), [0] * len(names))


def row(run, step, norms, **changes):
    values = {"loss": 4 - step / 10, "lr": 0.1, "global_norm": 1.0, "lr_factor": 1.0, "clip_coef": 1.0}
    values = {**values, "loss_scale": 1.0, "flags": 0, **changes}
    run.statistics.append(step, norms=np.asarray(norms, dtype=np.float32), **values)


@pytest.fixture
def recorded(tmp_path):
    """Twelve steps: a NaN that was skipped at step 5, a spike that was clipped at 8, judged at 11; closed."""
    run = RunDirectory.create(tmp_path / "exp", info={"policy": {"mode": "enforce"}})
    run.write_layout(table(NAMES))
    run.journal.append(Event(event="attached", message="3 parameters"))
    nan = Finding(diagnosis="nonfinite", step=5, severity="critical", parameters=("h.0.weight",), num_parameters=1)
    spike = Finding(diagnosis="exploding_gradient", step=8, value=300.0, baseline=1.0, parameters=("wte.weight",))
    for step in range(12):
        norms, changes = [1.0, 2.0, -1.0], {}
        if step == 5:
            norms, changes = [1.0, np.nan, -1.0], {"loss": np.nan, "flags": Flag.SKIPPED_BY_GUARD | Flag.FINDING}
            common = {"step": 5, "diagnosis": "nonfinite", "finding": nan}
            run.journal.append(Intervention(rule="r", remedy="skip_step", change=Change(summary="skipped"), **common))
            run.journal.append(Withheld(rule="s", remedy="stop", reason="cooldown", **common))
        if step == 8:
            norms, changes = [300.0, 2.0, 0.5], {"clip_coef": 0.01, "lr_factor": 0.5, "flags": Flag.INTERVENTION}
            common = {"step": 8, "diagnosis": "exploding_gradient", "finding": spike}
            run.journal.append(Intervention(rule="c", remedy="clip_norm", change=Change(summary="300 -> 3"), **common))
        row(run, step, norms, **changes)
    run.journal.append(Outcome(step=11, of=1, verdict="helped", loss_before=4.0, loss_after=3.0, horizon=6))
    run.finish()
    return run.path
