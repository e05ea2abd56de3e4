"""What the default policy does about a run that goes wrong from its first steps on."""

import math

import pytest
import torch
from torch import nn

import gradguard
from gradguard.policy.load import load_policy


class Line:
    """A line fitted by SGD, whose loss and learning rate are dictated."""

    def __init__(self, lr=0.1, policy=None):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr)
        self.guard = gradguard.attach(self.model, self.optimizer, policy)
        self.x = torch.randn(64, 4)

    def step(self, factor=1.0):
        self.optimizer.zero_grad()
        loss = (self.model(self.x) - self.x.sum(1, keepdim=True)).square().mean() * factor
        loss.backward()
        self.guard.observe(loss)
        self.optimizer.step()
        return [record.remedy for record in self.guard.last.interventions]


def test_nothing_but_nan_from_the_start_is_stopped_with_a_word_after_eight_skips():
    line = Line()
    line.step()
    before = line.model.weight.clone()
    assert [line.step(math.nan) for _ in range(8)] == [["skip_step"]] * 8
    with pytest.raises(gradguard.TrainingStopped, match="NaN"):
        line.step(math.nan)
    assert torch.equal(line.model.weight, before)


def test_bad_batches_here_and_there_are_skipped_and_nothing_else_however_many():
    """Every third batch is bad, and up to seven in a row."""
    line = Line()
    done = [line.step(math.nan if step % 3 == 0 or 40 <= step < 47 else 1.0) for step in range(120)]
    assert {remedy for remedies in done for remedy in remedies} == {"skip_step"}


def test_a_first_step_that_runs_away_goes_back_with_a_tenth_of_the_rate_and_a_leash_for_good():
    line = Line(lr=100.0)
    start = line.model.weight.clone()
    assert line.step() == []  # its update is ten times what the weights are, but nothing is known to have grown
    assert sorted(line.step()) == ["keep_clipping", "rollback", "scale_lr"]
    assert torch.equal(line.model.weight, start)
    for _ in range(200):
        line.step()
    assert line.guard.last.lr_factor == pytest.approx(0.1)
    assert line.model.weight.isfinite().all()


def test_where_that_does_not_hold_either_the_run_is_stopped():
    """The gradient grows a thousandfold at every step, whatever is done; just after a rollback nothing is known yet."""
    line = Line()
    done = [sorted(line.step(1e3**power)) for power in range(5)]
    assert done == [[], ["keep_clipping", "rollback", "scale_lr"]] * 2 + [[]]
    with pytest.raises(gradguard.TrainingStopped, match="times as large as the weights"):
        line.step(1e15)


def test_rates_are_aimed_by_default_and_left_to_the_user_in_a_finetune():
    def remedies(preset):
        (rule,) = [rule for rule in load_policy(preset).rules if rule.name == "aim-updates"]
        return [remedy.name for remedy in rule.do]

    assert remedies("default") == ["notify", "scale_lr"]
    assert remedies("finetune") == ["notify"]
