"""What skipping alone would go on with for ever: each ends, in a run that learns or in a clear word, in bounded time.

And what comes back for ever but does no harm: that is borne for ever.
"""

import math
import re

import pytest
import torch
from guarded import noise, regression, train
from torch import nn

import gradguard
from gradguard.policy.load import load_preset


START = 40


def nan_at(is_bad):
    """A healthy regression whose targets are NaN at some steps."""
    return regression(spoil=lambda step, inputs, targets: (inputs, targets * (math.nan if is_bad(step) else 1.0)))


def last_batch_of_one_sample():
    """Standardised over the batch by hand; the last batch of every epoch is a single sample."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    data = noise(0, 33, 3)

    def loss_at(step):
        inputs = data[8 * (step % 5) :][:8]
        hidden = model[1](model[0](inputs))
        spread = hidden.std(0) if len(inputs) > 1 else torch.full((8,), math.nan)
        return (model[2]((hidden - hidden.mean(0)) / (spread + 1e-5)) - inputs.sum(1, keepdim=True)).square().mean()

    return model, torch.optim.Adam(model.parameters(), lr=1e-2), loss_at


def verdicts(run):
    return {record.verdict for record in run.guard.records if record.kind == "outcome"}


def remedies(run):
    return {remedy for _, _, remedy in run.acted}


@pytest.mark.parametrize("is_observed", [True, False])
def test_nan_at_every_other_step_for_ever_is_told_and_stopped_in_the_end(is_observed, lines):
    run = train(nan_at(lambda step: step >= START and step % 2), 1500, is_observed=is_observed)
    assert run.stopped is not None
    assert 400 < len(run.losses) < 700
    assert run.is_finite
    assert "budget is spent: 200 actions did not help in the last 500 steps" in str(run.stopped)
    assert re.search(r"Tried: skip_step \d+ times \(.*no effect\)", str(run.stopped))
    assert any("100 times so far" in line for line in lines)
    assert [(record.reason, record.remedy) for record in run.withheld] == [("budget", "skip_step")]


@pytest.mark.parametrize("is_observed", [True, False])
def test_a_bad_last_batch_in_every_epoch_neither_climbs_the_ladder_nor_spends_the_budget(is_observed):
    policy = load_preset("default").model_copy(update={"budget": 15, "budget_within": None})
    run = train(last_batch_of_one_sample, 400, policy=policy, is_observed=is_observed)
    assert run.stopped is None
    skipped = [step for step, _, remedy in run.acted if remedy == "skip_step"]
    assert skipped == list(range(4, 400, 5))
    assert remedies(run) <= {"skip_step", "clip_norm"}
    assert verdicts(run) == {"helped" if is_observed else "unknown"}


def test_a_rung_for_what_has_no_effect_is_not_climbed_for_a_bad_batch_now_and_then():
    rule = {"when": "nonfinite", "do": "skip_step", "escalate": [{"if_outcome": ["no_effect", "worse"], "do": "stop"}]}
    policy = gradguard.Policy.model_validate({"rules": [rule], "budget": 15})
    assert train(last_batch_of_one_sample, 300, policy=policy).stopped is None
    run = train(nan_at(lambda step: step >= START and step % 2), 300, policy=policy)
    assert run.stopped is not None
    assert run.acted[-1][2] == "stop"


def test_data_that_is_nan_from_some_step_on_is_not_skipped_for_ever():
    run = train(nan_at(lambda step: step >= START), 1500)
    assert run.stopped is not None
    assert len(run.losses) < 3 * START
    assert {"skip_step", "rollback", "scale_lr", "stop"} <= remedies(run)
    assert verdicts(run) == {"no_effect"}
    assert run.is_finite


def test_weights_that_turn_nan_again_and_again_are_rolled_back_then_the_run_is_stopped():
    def spoil(model, optimizer, step):
        if step >= START:
            with torch.no_grad():
                next(model.parameters())[0, 0] = math.nan

    run = train(regression(), 1500, after=spoil)
    assert run.stopped is not None
    assert "skip_step" not in remedies(run)
    assert len(run.losses) < 2 * START
    assert run.is_finite


def test_a_state_in_which_every_loss_is_nan_is_left_by_a_rollback_and_not_skipped_for_ever():
    """The weights are finite, but beyond the reach of the logarithm: no batch has a finite loss any more."""

    def make():
        model = nn.Linear(4, 1)

        def loss_at(step):
            inputs = noise(step, 32, 4)
            reach = model.weight.abs().sum()
            return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() + 0.0 * (50.0 - reach).log()

        return model, torch.optim.SGD(model.parameters(), lr=0.05), loss_at

    def push(model, optimizer, step):
        if step == START:
            with torch.no_grad():
                model.weight += 100.0

    run = train(make, 200, after=push)
    assert run.stopped is None
    assert "rollback" in remedies(run)
    assert len([remedy for _, _, remedy in run.acted if remedy == "skip_step"]) < 10
    assert run.end() < 0.01


def test_an_optimizer_whose_moments_are_nan_is_rolled_back_with_them():
    def spoil(model, optimizer, step):
        if step == START:
            for state in optimizer.state.values():
                state["exp_avg"].fill_(math.nan)

    run = train(regression(), 200, after=spoil)
    assert run.stopped is None
    assert "rollback" in remedies(run)
    assert run.is_finite
    assert len(run.applied) > 150


@pytest.mark.parametrize("lr", [3.0, 30.0, 300.0])
def test_a_learning_rate_that_is_far_too_high_ends_in_smaller_steps_or_a_stop_and_never_in_skips_for_ever(lr):
    def make():
        model, _, loss_at = regression()()
        return model, torch.optim.SGD(model.parameters(), lr=lr), loss_at

    run = train(make, 600)
    assert run.is_finite
    is_shortened = "scale_lr" in remedies(run)
    assert run.stopped is not None or is_shortened
    if run.stopped is None:
        assert run.guard.last.step == 599
        assert len([step for step in run.applied if step >= 500]) > 60


def test_a_recurrence_that_explodes_leaves_no_run_that_only_skips():
    def make():
        model = nn.RNN(4, 16, nonlinearity="relu", batch_first=True)
        with torch.no_grad():
            model.weight_hh_l0.copy_(1.6 * torch.eye(16))

        def loss_at(step):
            return model(noise(step, 8, 200, 4))[0][:, -1].square().mean()

        return model, torch.optim.SGD(model.parameters(), lr=0.01), loss_at

    run = train(make, 600)
    assert run.is_finite
    if run.stopped is None:
        assert len([step for step in run.applied if step >= 500]) > 60
    else:
        assert "Tried: " in str(run.stopped)
