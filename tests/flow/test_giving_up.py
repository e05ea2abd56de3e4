"""A run that is given up: everything is on disk, the last good state too, and the error says what to do next."""

import math
import os

import pytest
import torch
from guarded import noise, train
from torch import nn

import gradguard
from gradguard.flow.giving_up import last_words
from gradguard.outcomes.tally import Tally
from gradguard.record.directory import RunDirectory
from gradguard.records import Finding


START = 30
LADDER = {
    "name": "drop",
    "when": "nonfinite",
    "do": "skip_step",
    "escalate": [
        {"after": 2, "within": 5, "do": ["rollback", {"scale_lr": {"factor": 0.5}}]},
        {"after": 1, "within": 100, "do": "stop"},
    ],
}
POLICY = gradguard.Policy.model_validate({"rules": [LADDER], "snapshots": {"every": 10}, "sinks": []})


def make():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 1))
    model.register_module("again", model[3])  # one layer under two names

    def loss_at(step):
        inputs = noise(step, 16, 4)
        hidden = model[3](model[2](model[1](model[0](inputs))))
        return (hidden - inputs.sum(1, keepdim=True)).square().mean() * (math.nan if step >= START else 1.0)

    return model, torch.optim.AdamW(model.parameters(), lr=0.01), loss_at


@pytest.fixture
def given_up(tmp_path):
    """A run that was stopped for NaN, and the states of model and optimizer before each step."""
    states = {}

    def keep(model, optimizer, step):
        states[step + 1] = {
            "model": {name: value.clone() for name, value in model.state_dict().items()},
            "optimizer": optimizer.state_dict()["state"],
        }
        states[step + 1]["optimizer"] = {
            index: {name: value.clone() for name, value in state.items()}
            for index, state in states[step + 1]["optimizer"].items()
        }

    return train(make, 100, policy=POLICY, run_dir=tmp_path / "run", after=keep), states


def test_the_last_good_state_is_in_the_run_directory_and_loads_into_a_new_training(given_up, bits):
    run, states = given_up
    checkpoint = torch.load(f"{run.guard.run_dir}/last_good.pt", weights_only=True)
    expected = states[checkpoint["step"]]
    assert 0 < checkpoint["step"] <= START
    model, optimizer, _ = make()
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.testing.assert_close(dict(model.state_dict()), expected["model"], rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], expected["optimizer"], rtol=0, atol=0)


def test_the_error_says_what_was_tried_what_it_was_good_for_and_what_to_do_next(given_up):
    run, _ = given_up
    words = str(run.stopped)
    assert words.startswith(f"stopped at step {run.stopped.finding.step}: {run.stopped.finding.message}")
    assert "Tried: skip_step 4 times (no effect); scale_lr once (no effect); rollback once (no effect)." in words
    assert "What to do: " in words
    assert f"The last good state, of step 20, is in {run.guard.run_dir}/last_good.pt." in words
    assert words.endswith(f"See: gradguard audit {run.guard.run_dir}")


def test_the_record_is_whole_with_every_outcome_and_where_the_state_is(given_up):
    run, _ = given_up
    record = gradguard.read_run(run.guard.run_dir)
    assert record.status == "stopped"
    assert {item.outcome.verdict for item in record.interventions if item.remedy != "stop"} == {"no_effect"}
    (event,) = [event for event in record.events if event.event == "state_kept"]
    assert event.data == {"step": 20, "file": f"{run.guard.run_dir}/last_good.pt"}


def test_without_a_run_directory_or_snapshots_nothing_is_kept(tmp_path):
    without_snapshots = gradguard.Policy.model_validate({"rules": [{"when": "nonfinite", "do": "stop"}], "sinks": []})
    assert "last good" not in str(train(make, 40, policy=POLICY).stopped)
    run = train(make, 40, policy=without_snapshots, run_dir=tmp_path / "run")
    assert "last good" not in str(run.stopped)
    assert "Nothing else was tried." in str(run.stopped)
    assert list((tmp_path / "run").glob("*.pt")) == []


def test_a_state_that_cannot_be_written_is_a_fault_on_record_and_the_run_still_ends(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last_good.pt").mkdir()
    run = train(make, 100, policy=POLICY, run_dir=tmp_path / "run")
    assert run.stopped is not None
    assert "last good" not in str(run.stopped)
    (event,) = [event for event in run.events if event.event == "internal_error"]
    assert "keeping the last good state failed" in event.message
    assert list((tmp_path / "run").glob(".*")) == []


@pytest.mark.skipif(os.name != "posix", reason="a directory with open files cannot be moved there")
def test_a_directory_that_was_made_anew_gets_no_state(tmp_path):
    path = tmp_path / "run"

    def make_anew(model, optimizer, step):
        if step == START - 5:
            path.rename(tmp_path / "moved")
            RunDirectory.create(path).finish()

    run = train(make, 100, policy=POLICY, run_dir=path, after=make_anew)
    assert run.stopped is not None
    assert "last good" not in str(run.stopped)
    assert list(tmp_path.rglob("last_good.pt")) == []


def test_a_spent_budget_is_named_as_the_reason():
    policy = POLICY.model_copy(update={"budget": 1})
    words = str(train(make, 100, policy=policy).stopped)
    assert words.startswith(f"stopped at step {START + 1}: The run's budget is spent: 1 action did not help. The loss")


def test_a_finding_of_a_diagnosis_that_no_registry_knows_is_told_without_advice():
    words = last_words(3, "", Finding(diagnosis="theirs", step=3, message="Odd."), Tally())
    assert words == "stopped at step 3: Odd. Nothing else was tried."
    assert last_words(3, "", None, Tally()) == "stopped at step 3: a rule said so."


def test_verdicts_are_counted_one_by_one_where_they_differ():
    tally = Tally()
    for verdict in ("helped", "helped", "worse"):
        tally.did("plateau", "scale_lr")
        tally.judged("plateau", "scale_lr", verdict)
    tally.did("plateau", "rollback")
    words = last_words(3, "", Finding(diagnosis="plateau", step=3, message="Odd.", advice="Do this."), tally)
    expected = "Tried: scale_lr 3 times (2 helped, 1 worse); rollback once (not known). What to do: Do this."
    assert words == f"stopped at step 3: Odd. {expected}"
    twin = Tally()
    twin.load_state_dict(tally.state_dict())
    assert (twin.tried, twin.verdicts) == (tally.tried, tally.verdicts)


def test_a_report_on_a_step_holds_what_was_judged_once_it_was_taken():
    told = {}

    def look(model, optimizer, step):
        told[step] = guard_of[0].last.outcomes

    guard_of = []
    policy = gradguard.Policy.model_validate({"rules": [{"when": "nonfinite", "do": "skip_step"}], "horizon": 8})
    model, optimizer, loss_at = make()
    guard_of.append(gradguard.attach(model, optimizer, policy))
    for step in (*range(12), START, *range(12, 24)):
        optimizer.zero_grad()
        loss = loss_at(step)
        loss.backward()
        guard_of[0].observe(loss)
        optimizer.step()
        look(model, optimizer, guard_of[0].step - 1)
    judged = {step: outcomes for step, outcomes in told.items() if outcomes}
    assert list(judged) == [12 + 8 - 1]
    ((outcome,),) = judged.values()
    assert (outcome.verdict, outcome.step, outcome.horizon) == ("helped", 20, 8)


def test_what_was_done_before_the_optimizer_got_more_parameters_is_judged_by_the_losses_since():
    policy = gradguard.Policy.model_validate({"rules": [{"when": "nonfinite", "do": "skip_step"}], "horizon": 8})
    model, more = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = gradguard.attach(nn.ModuleList([model, more]), optimizer, policy)
    judged = []
    for step in range(20):
        if step == 13:
            optimizer.add_param_group({"params": more.parameters()})
        optimizer.zero_grad()
        inputs = noise(step, 8, 3)
        loss = (model(inputs) + more(inputs)).square().mean() * (math.nan if step == 10 else 1.0)
        loss.backward()
        guard.observe(loss)
        optimizer.step()
        judged += guard.last.outcomes
    (outcome,) = judged
    assert (outcome.step, outcome.verdict) == (18, "helped")
    assert outcome.loss_after is not None
