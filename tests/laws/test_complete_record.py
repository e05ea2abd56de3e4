"""Everything that was found, done or withheld is in the record, once, with its reason, whenever the process ends."""

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard
from gradguard.audit.verify import verify_run
from gradguard.contracts import Remedy, Unavailable


KILLED = Path(__file__).with_name("killed_training.py")
RULES = [
    {
        "name": "drop",
        "when": "nonfinite",
        "do": "skip_step",
        "cooldown": 1,
        "escalate": [{"after": 3, "within": 20, "do": [{"scale_lr": {"factor": 0.5}}, "skip_step"]}],
    },
    {"name": "also-drop", "when": "nonfinite", "do": ["rollback", "zero_nonfinite"], "budget": 3},
    {"name": "only-critical", "when": "nonfinite", "do": "notify", "min_severity": "critical"},
    {"name": "tame", "when": "exploding_gradient", "do": {"clip_norm": {"max_norm": 1.0}}},
]


def train(path, kinds, mode="enforce"):
    """Train on batches of the given kinds; return what the guard told at each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    told = []
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=RULES, mode=mode, horizon=5), run_dir=path) as guard:
        for step, kind in enumerate(kinds):
            optimizer.zero_grad()
            inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
            loss = model(inputs).square().mean() * {"good": 1.0, "nan": math.nan, "huge": 1e9}[kind]
            loss.backward()
            guard.observe(loss, sample_ids=[f"sample {step}"])
            optimizer.step()
            told.append(guard.last)
    return told


batches = st.lists(st.sampled_from(["good", "good", "good", "nan", "huge"]), max_size=40)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(kinds=batches, mode=st.sampled_from(["enforce", "observe"]))
def test_what_was_told_step_by_step_is_what_the_record_holds(tmp_path_factory, kinds, mode):
    path = tmp_path_factory.mktemp("runs") / "run"
    told = train(path, kinds, mode)
    run = gradguard.read_run(path)
    assert verify_run(path) == []
    assert [record.seq for record in run.records] == list(range(len(run.records)))
    in_steps = len(kinds)  # closing looks once more at what the last step left
    told_actions = as_json(record for last in told for record in last.interventions)
    assert as_json(record for record in run.interventions if record.step < in_steps) == told_actions
    told_withheld = as_json(record for last in told for record in last.withheld)
    assert as_json(record for record in run.withheld if record.step < in_steps) == told_withheld
    assert run.statistics.num_steps == len(kinds)
    assert list(run.statistics["step"]) == list(range(len(kinds)))
    if mode == "observe":
        assert run.interventions == []


def as_json(records):
    """Outcomes come later than what they are about: only the reader can put them there."""
    return [record.model_dump_json(exclude={"outcome"}) for record in records]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(kinds=batches)
def test_every_remedy_of_every_rule_that_fired_was_either_carried_out_or_withheld_with_a_reason(
    tmp_path_factory, kinds
):
    path = tmp_path_factory.mktemp("runs") / "run"
    told = train(path, kinds)
    run = gradguard.read_run(path)
    for step, last in enumerate(told):
        answers = Counter((r.rule, r.finding.diagnosis) for r in [*run.interventions, *run.withheld] if r.step == step)
        found = {finding.diagnosis for finding in last.findings}
        expected = {rule["name"] for rule in RULES if rule["when"] in found}
        assert {rule for rule, _ in answers} == expected
        for rule in RULES:
            if rule["name"] in expected:
                rungs = [rule["do"], *(rung["do"] for rung in rule.get("escalate", []))]
                lengths = {1 if not isinstance(do, list) else len(do) for do in rungs}
                assert answers[rule["name"], rule["when"]] >= min(lengths)
    assert len(run.findings) == sum(len(last.findings) for last in told)


def test_every_intervention_is_judged_and_names_the_data_it_is_about(tmp_path):
    train(tmp_path / "run", ["good", "nan", *["good"] * 10, "nan"])
    run = gradguard.read_run(tmp_path / "run")
    assert run.interventions
    assert all(record.outcome is not None for record in run.interventions)
    assert all(record.sample_ids == (f"sample {record.step}",) for record in run.interventions)
    assert {record.outcome.verdict for record in run.interventions if record.step == 12} == {"unknown"}


def test_every_reason_to_withhold_is_one_of_those_a_reader_knows(tmp_path):
    train(tmp_path / "run", ["good"] * 5 + ["nan"] * 12)
    run = gradguard.read_run(tmp_path / "run")
    assert {record.reason for record in run.withheld} >= {"cooldown", "budget", "superseded", "below_severity"}


class Missing(Remedy):
    name = "missing"
    kind = "optimizer"

    def apply(self, target, finding, rows):
        raise Unavailable("nothing here to act on")


class Idle(Missing):
    name = "idle"

    def apply(self, target, finding, rows):
        return None


class Broken(Missing):
    name = "broken"

    def apply(self, target, finding, rows):
        raise ZeroDivisionError("of the plugin's")


def test_a_remedy_that_did_not_act_is_in_the_record_with_what_kept_it(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    do = [Missing(), Idle(), Broken(), "skip_step"]
    policy = gradguard.Policy(rules=[{"name": "drop", "when": "nonfinite", "do": do}])
    with gradguard.attach(model, optimizer, policy, run_dir=tmp_path / "run") as guard:
        (model(torch.ones(4, 3)).mean() * math.nan).backward()
        optimizer.step()
        told = guard.last.withheld
    run = gradguard.read_run(tmp_path / "run")
    assert as_json(run.withheld) == as_json(told)
    assert [(record.remedy, record.reason) for record in told] == [
        ("missing", "unavailable"),
        ("idle", "unavailable"),
        ("broken", "failed"),
    ]
    assert "nothing here to act on" in told[0].detail
    assert all(record.detail for record in told)


def test_every_intervention_is_on_the_disk_for_good_before_its_step_is_taken(tmp_path, monkeypatch):
    """A power failure keeps what was synced alone: at each sync it is noted how much of the journal that is."""
    journal, kept, fsync = tmp_path / "run" / "interventions.jsonl", [0], os.fsync

    def note(file):
        fsync(file)
        if journal.exists() and os.path.samestat(os.fstat(file), os.stat(journal)):
            kept.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", note)
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = []
    with gradguard.attach(model, optimizer, run_dir=tmp_path / "run"):
        optimizer.register_step_pre_hook(lambda *_: done.append(journal.read_bytes()[: kept[-1]].count(b"skip_step")))
        for step in range(6):
            optimizer.zero_grad()
            (model(torch.ones(4, 3)).mean() * (math.nan if step % 2 else 1.0)).backward()
            optimizer.step()
    assert done[0] == 0
    assert [now > before for before, now in pairwise(done)] == [True, False, True, False, True]


def test_each_line_is_one_strict_json_object(tmp_path):
    train(tmp_path / "run", ["good", "nan", "huge", "nan"])

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    text = (tmp_path / "run" / "interventions.jsonl").read_text(encoding="ascii")
    records = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert "NaN" in {record["finding"]["evidence"].get("loss") for record in records if record.get("finding")}


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_run_that_was_killed_can_be_read_up_to_its_last_intervention(tmp_path):
    process = subprocess.Popen(
        [sys.executable, str(KILLED), str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    run = gradguard.read_run(tmp_path / "run")
    assert run.status == "interrupted"
    acted = [(record.step, record.remedy) for record in run.interventions]
    assert acted == [(5, "notify"), (5, "skip_step"), (11, "skip_step")]
    assert [problem.kind for problem in verify_run(tmp_path / "run")] == ["torn"]
    assert list(run.statistics["step"]) == list(range(11))
