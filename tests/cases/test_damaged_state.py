"""What a bad batch or a fault leaves behind elsewhere: in buffers, moments, copies of the weights, the weights."""

import copy
import math

import pytest
import torch
from guarded import OPTIMIZERS, classification, noise, regression, train, without
from torch import nn

import gradguard


BAD = 12


def normalised(norm):
    """A network with running statistics; one sample of batch 12 is NaN."""

    def make():
        model = nn.Sequential(nn.Conv1d(3, 6, 1), norm(6), nn.ReLU(), nn.Flatten(), nn.Linear(30, 1))

        def loss_at(step):
            inputs = noise(step, 16, 3, 5)
            if step == BAD:
                inputs[0, 0, 0] = math.nan
            return (model(inputs) - inputs.sum((1, 2))[:, None]).square().mean()

        return model, torch.optim.SGD(model.parameters(), lr=0.01), loss_at

    return make


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d,
        lambda width: nn.BatchNorm1d(width, momentum=None),
        lambda width: nn.InstanceNorm1d(width, track_running_stats=True),
    ],
    ids=["BatchNorm", "BatchNorm cumulative", "InstanceNorm"],
)
def test_running_statistics_never_keep_a_skipped_batch(norm, bits):
    """The forward pass has put the NaN into them by the time that the step is skipped."""
    run = train(normalised(norm), 20)
    assert [act for act in run.acted if act[2] != "notify"] == [(BAD, "nonfinite", "skip_step")]
    assert run.is_finite
    unseen = train(normalised(norm), without(20, [BAD]), is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(unseen.model, unseen.optimizer)
    assert run.model.eval()(noise(0, 4, 3, 5)).isfinite().all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_infinite_sample_costs_one_step_and_no_moment_keeps_it(optimizer):
    def spoil(step, inputs, targets):
        return inputs * math.inf if step == BAD else inputs, targets

    run = train(regression(optimizer, spoil), 25, is_observed=False)
    assert [act for act in run.acted if act[2] != "notify"] == [(BAD, "nonfinite", "skip_step")]
    assert run.applied == without(25, [BAD])
    assert run.is_finite


def spoil_state(key):
    """A function that puts a NaN into one tensor of the optimizer's state after step 40."""

    def after(model, optimizer, step):
        if step == 40:
            optimizer.state[next(model.parameters())][key].view(-1)[0] = math.nan

    return after


@pytest.mark.parametrize(
    ("optimizer", "key"), [("sgd", "momentum_buffer"), ("adamw", "exp_avg"), ("rmsprop", "square_avg")]
)
def test_a_rollback_takes_the_moments_along(optimizer, key):
    """With the weights alone restored, the NaN in the moments would spoil them again at every step."""
    run = train(regression(optimizer), 80, after=spoil_state(key))
    assert [remedy for _, _, remedy in run.acted] == ["rollback"]
    assert run.is_finite
    assert len(run.applied) == 79


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("task", [regression, classification])
def test_a_weight_that_turns_nan_is_taken_back_within_one_step(task, optimizer):
    def after(model, optimizer, step):
        if step == 40:
            with torch.no_grad():
                model[0].weight[2, 1] = math.nan

    run = train(task(optimizer), 250, after=after)
    assert [(step, remedy) for step, _, remedy in run.acted] == [(41, "rollback")]
    finding = run.interventions[0].finding
    assert finding.evidence["where"] == "state"
    assert finding.parameters == ("0.weight",)
    assert run.is_finite
    clean = train(task(optimizer), 250, is_guarded=False)
    assert run.end() < 1.5 * clean.end()


def half_precision_adam():
    """Weights in float16, where Adam's eps of 1e-8 is 0: a gradient of exactly 0 is divided by 0."""
    model = nn.Linear(5, 2).half()

    def loss_at(step):
        inputs = noise(step, 8, 5)
        inputs[:, 3] = 0
        return model(inputs.half()).float().square().mean()

    return model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_at


def test_weights_that_a_finite_gradient_turned_nan_are_rolled_back_and_the_eps_is_named():
    run = train(half_precision_adam, 4)
    assert run.acted[0][1:] == ("nonfinite", "rollback")
    assert "eps" in run.interventions[0].finding.advice
    assert run.is_finite


def test_weights_that_the_very_last_step_turned_nan_are_not_left_untold():
    """Nothing measures them any more, unless the guard looks once more as it is closed."""
    run = train(half_precision_adam, 1)
    assert run.applied == [0]
    run.guard.close()
    findings = [record.finding for record in (*run.interventions, *run.withheld)]
    assert any(finding.diagnosis == "nonfinite" for finding in findings) or run.is_finite


def test_a_run_that_breaks_its_weights_at_every_step_is_stopped_with_finite_ones():
    run = train(half_precision_adam, 60)
    assert run.stopped is not None
    assert run.stopped.finding.diagnosis == "nonfinite"
    assert run.is_finite
    assert {"rollback", "scale_lr", "stop"} <= {remedy for _, _, remedy in run.acted}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_moving_average_of_the_weights_never_sees_a_bad_update(optimizer):
    """Whatever follows the weights after each step cannot be healed by a later rollback."""

    def spoil(step, inputs, targets):
        return inputs, targets * math.nan if step == BAD else targets

    teacher = []

    def after(model, optimizer, step):
        if not teacher:
            teacher.append(copy.deepcopy(model))
        with torch.no_grad():
            for slow, fast in zip(teacher[0].parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    run = train(regression(optimizer, spoil), 30, after=after)
    assert [act for act in run.acted if act[2] != "notify"] == [(BAD, "nonfinite", "skip_step")]
    assert all(parameter.isfinite().all() for parameter in teacher[0].parameters())


@pytest.mark.parametrize("is_suspect", [False, True])
def test_a_state_saved_just_before_something_was_found_is_not_gone_back_to(is_suspect):
    """What was found a step later may have been at work already: the state before it is the one to trust."""

    def spoil(step, inputs, targets):
        if step == 32 and is_suspect:
            return inputs, targets + 1e4
        return inputs, targets * math.nan if step == 45 else targets

    rules = [
        {"when": {"loss_spike": {"warmup": 5, "window": 10}}, "do": "skip_step"},
        {"when": "nonfinite", "do": "rollback"},
    ]
    policy = gradguard.Policy(rules=rules, snapshots={"every": 10})
    run = train(regression("sgd", spoil), 46, policy=policy)
    found = [(record.step, record.diagnosis) for record in run.interventions]
    assert found == [(32, "loss_spike")] * is_suspect + [(45, "nonfinite")]
    assert run.interventions[-1].change.after["step"] == (20 if is_suspect else 30)
