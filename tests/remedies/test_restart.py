"""restart goes back to the state at attach time, whatever came since, and says what becomes of the schedule."""

import math

import pytest
import torch
from aim import aim, aim_at, finding_about, keep_state
from guarded import noise
from torch import nn
from torch.optim.swa_utils import AveragedModel

import gradguard
from gradguard.contracts import REMEDIES, Unavailable
from gradguard.snapshots.ring import Snapshots


Restart = REMEDIES.get("restart")


class Run:
    """A training whose loss is NaN at some steps, under a rule for that."""

    def __init__(self, do, snapshots=None, run_dir=None, hands_over=True, **rule):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.averaged = AveragedModel(self.model)
        policy = {"rules": [{"when": "nonfinite", "do": do, **rule}], "sinks": [], "snapshots": snapshots or {}}
        self.guard = gradguard.attach(
            self.model,
            self.optimizer,
            gradguard.Policy.model_validate(policy),
            run_dir=run_dir,
            also={"scheduler": self.scheduler, "ema": self.averaged} if hands_over else None,
        )

    def train(self, steps, bad=()):
        for step in steps:
            self.optimizer.zero_grad()
            loss = self.model(noise(step, 8, 3)).square().mean() * (math.nan if step in bad else 1.0)
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            self.averaged.update_parameters(self.model)
            self.scheduler.step()
        return self

    def state(self):
        return [self.model.state_dict(), self.optimizer.state_dict()["state"], self.averaged.module.state_dict()]


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_follows_is_a_run_that_only_saw_the_data_since(where, tmp_path):
    run = Run("restart", {"where": where}, tmp_path / "run").train(range(60), bad={40})
    assert [(r.step, r.remedy) for r in run.guard.records if r.kind == "intervention"] == [(40, "restart")]
    fresh = Run("skip_step").train(range(40, 60), bad={40})
    assert_same(run.state(), fresh.state())
    assert run.optimizer.param_groups[0]["lr"] == fresh.optimizer.param_groups[0]["lr"]


def test_rolling_statistics_start_afresh():
    run = Run("restart").train(range(41), bad={40})
    judgement = run.guard._pipeline.judgement
    assert all(window.steps == 0 for window in judgement.windows.values())
    assert all(math.isnan(losses.median) for losses in judgement.losses.values())


@pytest.mark.parametrize(
    ("hands_over", "schedule", "told", "rate"),
    [
        (True, "restart", "restarts", 0.01 * 0.9),
        (True, "continue", "goes on", 0.01 * 0.9**41),
        (False, "restart", "goes on", 0.01 * 0.9**41),
    ],
)
def test_the_schedule_restarts_or_goes_on_and_the_record_says_which(hands_over, schedule, told, rate):
    run = Run({"restart": {"schedule": schedule}}, hands_over=hands_over).train(range(41), bad={40})
    (record,) = [record for record in run.guard.records if record.kind == "intervention"]
    assert record.change.summary == f"restarted from the state before step 0; the learning-rate schedule {told}"
    assert record.change.after == {"step": 0, "steps_lost": 40, "schedule": told}
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_a_learning_rate_factor_and_a_leash_follow():
    do = ["restart", {"scale_lr": {"factor": 0.5}}, {"keep_clipping": {"max_norm": 0.1, "steps": 50}}]
    run = Run(do).train(range(60), bad={40})
    assert [r.remedy for r in run.guard.records if r.kind == "intervention"] == ["scale_lr", "keep_clipping", "restart"]
    assert run.guard.last.lr_factor == 0.5
    assert run.guard.last.clip_coef < 1


def test_a_factor_in_force_is_not_taken_into_the_schedule():
    """With a closure the factor is on the learning rate when the state is put back; and it equals the scaled one."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 2.0)
    rules = [{"when": "nonfinite", "do": [{"scale_lr": {"factor": 0.5}}, "restart"]}]
    guard = gradguard.attach(model, optimizer, gradguard.Policy(rules=rules, sinks=[]), also={"scheduler": scheduler})
    for step in range(8):

        def evaluate(step=step):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 1)).sum() * (math.nan if step in (3, 4) else 1.0)
            loss.backward()
            return loss

        optimizer.step(evaluate)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5 * 2.0**4
    assert guard.last.lr_factor == 0.25


def test_rank_lies_between_rollback_and_stop():
    ranks = [REMEDIES.get(name).rank for name in ("skip_step", "rollback", "restart", "stop")]
    assert ranks == sorted(set(ranks))


def test_after_a_restart_no_state_from_before_it_comes_back():
    run = Run(["restart"], {"keep": 4, "every": 10}, escalate=[{"after": 1, "within": 40, "do": "rollback"}])
    run.train(range(100), bad={80, 83})
    changes = [(r.remedy, r.change.after["step"]) for r in run.guard.records if r.kind == "intervention"]
    assert changes == [("restart", 0), ("rollback", 0)]


def test_without_snapshots_it_says_so_and_changes_nothing():
    target = aim(torch.ones(2))
    with pytest.raises(Unavailable, match="keeps no snapshots"):
        Restart().apply(target, finding_about(), None)
    assert not target.is_skipped


def test_where_the_start_could_not_be_saved_it_says_why():
    target = aim(torch.ones(2))
    target.snapshots = Snapshots(target.model, target.optimizer, 10, 1e-12, keeps_start=math.inf)
    target.snapshots.take(0, {}, is_confirmed=True)
    with pytest.raises(Unavailable, match="max_memory_share"):
        Restart().apply(target, finding_about(), None)
    assert not target.is_skipped


def test_where_the_start_was_not_kept_it_says_so():
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    target = aim_at(model, torch.optim.SGD(model.parameters(), lr=0.1))
    keep_state(target)
    with pytest.raises(Unavailable, match="that of the start was not saved"):
        Restart().apply(target, finding_about(), None)


def test_on_disk_needs_a_run_directory():
    with pytest.raises(gradguard.AttachError, match="pass run_dir="):
        Run("restart", {"where": "disk"})


def test_size_and_number_of_copies_are_told_at_attach(tmp_path):
    for where, place in (("memory", "in memory"), ("disk", "on disk")):
        run = Run(["restart"], {"keep": 3, "where": where}, tmp_path / where)
        notes = run.guard.records[0].data["notes"]
        assert any(note.startswith("snapshots take ") and note.endswith(f"5 at a time {place}") for note in notes)
