"""With `sync: deferred` the record is as complete as ever, whenever the process ends, stops or is resumed."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from deferring import NAN, Net, train
from torch import nn

import gradguard
from gradguard.audit.verify import verify_run
from gradguard.record.statistics import Flag


STOP = [{"name": "end", "when": "nonfinite", "do": "stop"}]


def test_a_stop_ends_the_training_at_the_next_step_with_everything_on_record(bits, tmp_path):
    runs = {s: train(STOP, s, losses={20: NAN}, run_dir=tmp_path / s) for s in ("immediate", "deferred")}
    assert {sync: run.stopped for sync, run in runs.items()} == {"immediate": 20, "deferred": 21}
    read = {sync: gradguard.read_run(run.guard.run_dir) for sync, run in runs.items()}
    for run in read.values():
        assert run.status == "stopped"
        assert [(r.step, r.remedy) for r in run.interventions] == [(20, "stop")]
        assert run.statistics["step"].tolist() == list(range(21))
    weights = [list(run.model.parameters()) for run in runs.values()]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_stop_is_told_at_once_to_who_asks(tmp_path):
    run = train(STOP, "deferred", losses={20: NAN}, asks=True)
    assert run.stopped == 21
    assert [r.remedy for r in run.reports[20].interventions] == ["stop"]


def test_closing_right_after_a_fault_records_it(tmp_path):
    run = train("default", "deferred", losses={20: NAN}, steps=21, run_dir=tmp_path / "run")
    read = gradguard.read_run(run.guard.run_dir)
    assert [(r.step, r.remedy) for r in read.interventions] == [(20, "skip_step")]
    assert read.statistics["step"].tolist() == list(range(21))
    assert verify_run(tmp_path / "run") == []


def test_every_record_and_row_is_about_its_own_step(tmp_path):
    faults = {12: NAN, 25: 1e5, 37: NAN}
    run = train("default", "deferred", losses=faults, observe=None, run_dir=tmp_path / "run")
    read = gradguard.read_run(run.guard.run_dir)
    assert [r.step for r in read.interventions] == sorted(faults)
    assert read.statistics["step"].tolist() == list(range(50))
    flags = read.statistics["flags"]
    assert np.flatnonzero(flags & Flag.SKIPPED_BY_GUARD).tolist() == [12, 37]
    assert np.flatnonzero(flags & Flag.INTERVENTION).tolist() == sorted(faults)


@pytest.mark.parametrize("saved_at", [1, 9, 12, 13, 17, 26])
def test_a_run_saved_at_any_step_goes_on_as_the_uninterrupted_one(bits, saved_at):
    """What is under way is taken in before anything is saved."""
    options = {"losses": {12: NAN, 25: 1e5, 37: NAN}, "observe": None}
    saved = {}

    def save(run, step):
        if step == saved_at:
            parts = {"model": run.model, "optimizer": run.optimizer, "guard": run.guard}
            saved.update({name: copy.deepcopy(part.state_dict()) for name, part in parts.items()})

    def load(run):
        for name, part in (("model", run.model), ("optimizer", run.optimizer), ("guard", run.guard)):
            part.load_state_dict(saved[name])

    whole = train("default", "deferred", around=save, **options)
    resumed = train("default", "deferred", start=load, left_out=set(range(saved_at + 1)), **options)
    later = [line for line in whole.told if line[0] == "intervention" and line[1] > saved_at]
    assert [line for line in resumed.told if line[0] == "intervention"] == later
    assert resumed.state(bits) == whole.state(bits)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize(("killed_at", "steps"), [("5", []), ("6", [5])])
def test_a_run_that_was_killed_lacks_its_last_step_at_most(tmp_path, killed_at, steps):
    command = [sys.executable, str(Path(__file__).with_name("killed_training.py")), str(tmp_path / "run")]
    process = subprocess.run([*command, "deferred", killed_at], capture_output=True, text=True, timeout=60)
    assert process.returncode == -signal.SIGKILL, process.stderr
    run = gradguard.read_run(tmp_path / "run")
    assert [(record.step, record.remedy) for record in run.interventions] == [(step, "skip_step") for step in steps]
    assert [problem.kind for problem in verify_run(tmp_path / "run")] == ["torn"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_that_are_added_are_guarded_from_their_first_step_on(bits, dtype):
    """With wide ones among them the host waits, since no kernel can apply a factor exactly."""

    def add(run, step):
        if step == 20:
            torch.manual_seed(1)
            run.model.late = nn.Linear(4, 1, dtype=dtype)
            run.optimizer.add_param_group({"params": run.model.late.parameters(), "lr": 0.001})

    options = {"losses": {20: NAN, 22: NAN, 35: NAN}, "around": add}
    immediate, deferred = (train("default", sync, **options) for sync in ("immediate", "deferred"))
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)
    assert bool(deferred.guard.reasons_to_wait) == (dtype is torch.float64)


@pytest.mark.parametrize("is_later", [False, True])
def test_a_loaded_state_that_ends_the_fused_path_makes_the_host_wait(is_later):
    """Torch's other kernels refuse to skip."""
    state = torch.optim.AdamW(Net().parameters(), lr=0.01).state_dict()

    def load(run, step):
        if step == 15 * is_later:
            run.optimizer.load_state_dict(state)

    run = train("default", "deferred", losses={30: NAN}, around=load)
    assert [line[1:5] for line in run.told if line[0] == "intervention"] == [
        (30, "drop-nonfinite", "nonfinite", "skip_step")
    ]
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_a_state_that_is_loaded_replaces_what_is_under_way():
    """A rollback that was due for the step before would undo the weights that were just loaded."""
    saved = {}

    def rewind(run, step):
        parts = {"model": run.model, "optimizer": run.optimizer, "guard": run.guard}
        if step == 14:
            saved.update({name: copy.deepcopy(part.state_dict()) for name, part in parts.items()})
        if step == 20:
            for name, part in parts.items():
                part.load_state_dict(saved[name])

    rules = [{"when": "nonfinite", "do": "rollback"}]
    run = train(rules, "deferred", losses={20: NAN}, steps=21, around=rewind)
    assert run.guard.step == 15
    assert all(torch.equal(value, saved["model"][name]) for name, value in run.model.state_dict().items())


def test_a_snapshot_holds_the_statistics_of_every_step_before_it():
    """It is taken when the step is judged, not while its numbers are under way."""
    immediate, deferred = (train("default", sync, steps=35) for sync in ("immediate", "deferred"))
    found, expected = deferred.guard.snapshots.good, immediate.guard.snapshots.good
    assert found.step == expected.step > 10
    np.testing.assert_equal(found.windows, expected.windows)


def test_what_a_probe_finds_is_acted_on_at_the_next_step(bits):
    """A buffer went bad that no step would show."""

    def spoil(run, step):
        if step == 23:
            run.model.body[1].running_mean[0] = NAN

    options = {"around": spoil, "monitor": {"probe_every": 10}}
    immediate = train("default", "immediate", **options)
    deferred = train("default", "deferred", **{**options, "monitor": {"probe_every": 10, "sync": "deferred"}})
    assert [line[1:5] for line in deferred.told if line[0] == "intervention"] == [
        (30, "restore-weights", "nonfinite", "rollback")
    ]
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)
