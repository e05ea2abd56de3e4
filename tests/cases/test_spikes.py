"""One finite outlier in a run that trains well: seen at its step, before the update, and the run hardly notices."""

import math

import pytest
import torch
from guarded import Setup, classification, noise, regression, train
from torch import nn

import gradguard
from gradguard.faults import Fault, inject


SPIKE = 60


def bad_targets(factor):
    def spoil(step, inputs, targets):
        return inputs, targets * factor if step == SPIKE else targets

    return spoil


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_one_mislabelled_batch_is_passed_over_as_a_loss_spike(optimizer, tmp_path):
    run = train(regression(optimizer, bad_targets(-300.0)), 120, run_dir=tmp_path / "run")
    assert run.acted == [(SPIKE, "loss_spike", "skip_step")]
    finding = run.interventions[0].finding
    assert finding.value == pytest.approx(run.losses[SPIKE], rel=1e-5)
    assert finding.value > 100 * finding.baseline
    assert "nan" not in finding.message.lower()
    assert run.losses[SPIKE + 1] < 2 * run.losses[SPIKE - 1]
    run.guard.close()
    recorded = gradguard.read_run(tmp_path / "run")
    assert [(record.step, record.remedy) for record in recorded.interventions] == [(SPIKE, "skip_step")]
    assert recorded.interventions[0].outcome.verdict in ("helped", "unknown")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_without_the_loss_the_gradient_tells_and_is_clipped(optimizer):
    run = train(regression(optimizer, bad_targets(-300.0)), 200, is_observed=False)
    assert run.acted == [(SPIKE, "exploding_gradient", "clip_norm")]
    clean = train(regression(optimizer), 200, is_guarded=False)
    assert run.end() < 1.3 * clean.end()


def rectifiers(optimizer) -> Setup:
    """A net of rectifiers that one far-off batch would push below zero for good."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss_at(step):
        inputs = noise(step, 64, 6).abs()
        targets = inputs.mean(1, keepdim=True) - (300.0 if step == 8 else 0.0)
        return (model(inputs) - targets).square().mean()

    return model, optimizer(model.parameters()), loss_at


def num_alive(model):
    return int((model[1](model[0](noise(10**6, 256, 6).abs())) > 0).any(0).sum())


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)],
    ids=["SGD", "momentum"],
)
def test_units_that_one_step_would_have_killed_stay_alive(optimizer, is_observed):
    lost = train(lambda: rectifiers(optimizer), 40, is_guarded=False)
    run = train(lambda: rectifiers(optimizer), 40, is_observed=is_observed)
    assert num_alive(lost.model) <= 2
    assert 8 in {step for step, _, _ in run.acted}
    assert num_alive(run.model) > 16
    assert run.end() < 0.1


def one_layer(factor, name):
    """The gradient of one small parameter is multiplied at one step."""

    def make():
        model, optimizer, loss_at = regression("sgd")()
        calls = []

        def hook(gradient):
            calls.append(None)
            return gradient * factor if len(calls) - 1 == SPIKE else gradient

        model.get_parameter(name).register_hook(hook)
        return model, optimizer, loss_at

    return make


@pytest.mark.parametrize("name", ["4.bias", "2.bias", "0.weight"])
def test_an_explosion_in_one_layer_alone_is_named(name):
    run = train(one_layer(1e4, name), 200)
    assert run.acted == [(SPIKE, "exploding_gradient", "clip_norm")]
    finding = run.interventions[0].finding
    assert finding.parameters[0] == name
    assert name in finding.message or finding.evidence["scope"] == "global"
    clean = train(regression("sgd"), 200, is_guarded=False)
    assert run.end() < 2 * clean.end()


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize("value", [1e4, 1e10, 1e30])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(
    ("task", "name"), [(regression, "0.weight"), (regression, "4.weight"), (classification, "3.weight")]
)
def test_a_weight_that_a_fault_made_huge_does_not_lose_the_run(task, name, optimizer, value, is_observed):
    """Short steps cannot bring such a weight back; only an earlier state can."""

    def after(model, optimizer, step):
        if step == SPIKE:
            with torch.no_grad():
                model.get_parameter(name).view(-1)[0] = value

    run = train(task(optimizer), 300, after=after, is_observed=is_observed)
    assert run.interventions
    assert run.is_finite
    assert run.stopped is None
    clean = train(task(optimizer), 300, is_guarded=False)
    assert run.end() < 2 * clean.end()


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("task", [regression, classification])
def test_a_learning_rate_that_is_far_too_high_for_one_step_does_not_lose_the_run(task, optimizer, is_observed):
    def make():
        model, torch_optimizer, loss_at = task(optimizer)()
        faults = [Fault("scale", "lr", at=SPIKE, factor=300.0)]
        make.injection = inject(model, torch_optimizer, faults)
        make.injection.__enter__()
        return model, torch_optimizer, loss_at

    run = train(make, 400, is_observed=is_observed)
    make.injection.__exit__(None, None, None)
    assert run.is_finite
    clean = train(task(optimizer), 400, is_guarded=False)
    assert run.end() < 1.5 * clean.end()


@pytest.mark.parametrize("is_observed", [True, False])
def test_a_scheduler_that_goes_wrong_for_good_is_contained(is_observed):
    """The learning rate is 100 times too high from step 60 on."""

    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 100.0 if step >= SPIKE else 1.0)

    run = train(regression("sgd"), 300, schedule=schedule, is_observed=is_observed)
    lost = train(regression("sgd"), 300, schedule=schedule, is_guarded=False)
    assert not math.isfinite(lost.losses[-1])
    assert run.is_finite
    assert run.stopped is not None or run.end() < 2 * run.losses[0]


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_run_of_bad_batches_costs_little_more_than_itself(optimizer, count):
    def spoil(step, inputs, targets):
        return inputs * 1e3 if SPIKE <= step < SPIKE + count else inputs, targets

    run = train(regression(optimizer, spoil), 400)
    clean = train(regression(optimizer), 400, is_guarded=False)
    assert run.is_finite
    assert run.stopped is None
    assert run.end() < 2 * clean.end()
