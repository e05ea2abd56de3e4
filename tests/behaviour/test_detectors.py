"""Detectors on signals made by hand: blind to nothing, locked by nothing, and never early.

The signals stay flat on purpose, which `plateau` is right to tell: it is left out.
"""

import math

import pytest
import torch
from guarded import noise
from torch import nn

import gradguard


class Signal:
    """Steps whose gradient norm and loss are chosen: one weight under a learning rate that moves nothing."""

    def __init__(self, policy=None):
        self.weight = nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.Adam([self.weight], lr=1e-12)
        self.guard = gradguard.attach(nn.ParameterList([self.weight]), self.optimizer, policy)

    def step(self, norm=1.0, loss=None):
        """Take a step and return the names of the diagnoses that alarmed."""
        self.weight.grad = torch.full((1,), float(norm))
        if loss is not None:
            self.guard.observe(loss)
        self.optimizer.step()
        findings = [finding for finding in self.guard.last.findings if finding.diagnosis != "plateau"]
        return [finding.diagnosis for finding in findings if finding.severity != "info"]

    def settle(self, steps=60, **levels):
        """Take steps at a level with 5 % of noise and return what alarmed."""
        alarms = []
        for step in range(steps):
            wobble = 1 + 0.05 * noise(step, 1).item()
            alarms += self.step(**{name: level * wobble for name, level in levels.items()})
        return alarms


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["norm", "loss"])
def test_one_bad_value_neither_blinds_nor_locks_a_detector(what, value):
    """The step after is good again, and a true spike 900 steps later is seen."""
    signal = Signal()
    assert signal.settle(norm=1.0, loss=2.0) == []
    assert signal.step(**{"norm": 1.0, "loss": 2.0, what: value}) == ["nonfinite"]
    assert signal.step(norm=1.0, loss=2.0) == []
    assert signal.settle(900, norm=1.0, loss=2.0) == []
    spike = {"norm": 500.0, "loss": 2.0} if what == "norm" else {"norm": 1.0, "loss": 1000.0}
    assert signal.step(**spike) == [{"norm": "exploding_gradient", "loss": "loss_spike"}[what]]


def test_a_large_outlier_does_not_mask_a_smaller_one_after_it():
    signal = Signal()
    signal.settle(200, norm=1.0, loss=1.0)
    assert "loss_spike" in signal.step(norm=1.0, loss=1000.0)
    assert signal.settle(29, norm=1.0, loss=1.0) == []
    assert "loss_spike" in signal.step(norm=1.0, loss=20.0)


def test_a_large_gradient_does_not_mask_a_smaller_one_after_it():
    signal = Signal()
    signal.settle(200, norm=1.0)
    assert signal.step(norm=1e6) == ["exploding_gradient"]
    assert signal.settle(29, norm=1.0) == []
    assert signal.step(norm=200.0) == ["exploding_gradient"]


@pytest.mark.parametrize("what", ["norm", "loss"])
@pytest.mark.parametrize("factor", [3.0, 30.0])
def test_a_new_level_is_accepted_within_a_window_and_stays_accepted(what, factor):
    """After the baseline has followed, nothing alarms, and a spike above the new level is seen again."""
    signal = Signal()
    signal.settle(100, norm=1.0, loss=1.0)
    levels = {"norm": 1.0, "loss": 1.0, what: factor}
    assert len(signal.settle(50, **levels)) <= 30
    assert signal.settle(200, **levels) == []
    assert signal.step(**{**levels, what: 1000 * factor}) != []


def test_a_loss_that_settles_on_a_new_level_is_taken_for_normal_on_record():
    """It keeps rising, so that every step is above all before it, until the ladder says: this is the level now."""
    signal = Signal()
    signal.settle(100, norm=1.0, loss=1.0)
    for step in range(12):
        signal.step(norm=1.0, loss=100.0 * 1.1**step)
    remedies = [record.remedy for record in signal.guard.records if record.kind == "intervention"]
    assert remedies[:3] == ["skip_step"] * 3
    assert "rebaseline" in remedies
    assert signal.settle(100, norm=1.0, loss=300.0) == []


@pytest.mark.parametrize("level", [1.0, 1e-6, 1e6, -3.0])
def test_a_constant_signal_with_a_trace_of_noise_is_no_alarm(level):
    signal = Signal()
    for step in range(200):
        assert signal.step(norm=abs(level), loss=level) == [], step
    assert signal.step(norm=abs(level) * 1.0001, loss=level + 1e-4 * abs(level)) == []


def test_before_the_baseline_is_there_nothing_is_judged_by_it_and_the_record_says_so():
    signal = Signal()
    attached = next(record for record in signal.guard.records if record.kind == "event")
    assert "are looked for from step 20 on" in attached.message
    for step in range(19):
        assert signal.step(norm=1.0 + 40 * (step % 2), loss=1.0 + 40 * (step % 2)) == []


def test_a_norm_that_overflowed_is_told_from_an_entry_that_is_infinite():
    signal = Signal()
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    guard = gradguard.attach(nn.ParameterList([weight]), optimizer)
    weight.grad = torch.tensor([3e19, 4e19])
    optimizer.step()
    (finding,) = guard.last.findings
    assert finding.diagnosis == "exploding_gradient"
    assert "overflow" in finding.message
    assert finding.value == pytest.approx(5e19)
    assert not guard.last.skipped
    assert weight.isfinite().all()
    assert (weight[1] / weight[0]).item() == pytest.approx(4 / 3, rel=1e-3)
    assert signal.step(norm=math.inf) == ["nonfinite"]
