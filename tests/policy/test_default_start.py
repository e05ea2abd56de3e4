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


def test_bad_batches_here_and_there_are_skipped_and_nothing_else_however_many():
    """Every third batch is bad, and once six in a row."""
    line = Line()
    done = [line.step(math.nan if step % 3 == 0 or 41 <= step < 47 else 1.0) for step in range(120)]
    assert {remedy for remedies in done for remedy in remedies} == {"skip_step"}


def test_one_bad_batch_at_the_start_is_passed_over_and_nothing_else():
    line = Line()
    done = [line.step(1e6 if step == 5 else 1.0) for step in range(60)]
    assert [remedies for remedies in done if remedies] == [["skip_step"]]


def test_a_start_that_runs_away_goes_back_with_a_tenth_of_the_rate_and_a_leash_for_good():
    line = Line(lr=100.0)
    start = line.model.weight.clone()
    done = []
    while len(done) < 30 and "rollback" not in done:
        done += line.step()
    assert done == ["skip_step", "scale_lr", "keep_clipping", "rollback"]
    assert torch.equal(line.model.weight, start)
    for _ in range(200):
        line.step()
    assert line.guard.last.lr_factor == pytest.approx(0.1)
    assert line.model.weight.isfinite().all()


class Net:
    """A small classifier of which a whole layer is killed by one early step."""

    def __init__(self, policy=None, kill_at=5, **options):
        torch.manual_seed(0)
        self.x = torch.randn(256, 8)
        self.y = (self.x[:, 0] > 0).long() + 2 * (self.x[:, 1] > 0).long()
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.guard = gradguard.attach(self.model, self.optimizer, policy, **options)
        self.kill_at = kill_at

    def run(self, steps):
        """Return (step, remedy) of every intervention."""
        done = []
        for step in range(steps):
            if step == self.kill_at:
                with torch.no_grad():
                    self.model[0].bias.fill_(-100.0)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.x), self.y)
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            done += [(step, record.remedy) for record in self.guard.last.interventions]
        return done


def test_a_layer_that_early_steps_killed_is_started_again_once_with_smaller_steps():
    net = Net(kill_at=5)
    done = [(step, remedy) for step, remedy in net.run(400) if remedy != "notify"]
    assert done == [(50, "scale_lr"), (50, "restart")]
    assert net.guard.last.lr_factor == pytest.approx(0.03)
    assert (net.model[0](net.x) > 0).any()


def test_a_finetune_is_not_started_again():
    assert {remedy for _, remedy in Net("finetune", kill_at=5).run(120)} <= {"notify", "clip_norm"}


def test_small_updates_are_the_user_s_affair_and_huge_ones_are_lowered():
    rules = [rule for rule in load_policy().rules if rule.when.name == "update_ratio"]
    assert {rule.when.about: [remedy.name for remedy in rule.do] for rule in rules} == {
        "small": ["notify"],
        "large": ["notify", "scale_lr"],
    }
