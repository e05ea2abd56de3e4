"""Gradients that grow out of all proportion: tamed while everything is still finite, and the run learns on."""

import math

import pytest
import torch
from guarded import noise, regression, train
from torch import nn


def recurrence(gain, lr=0.01, length=60):
    """A recurrent net of rectifiers whose state grows by the gain at every position."""

    def make():
        model = nn.RNN(3, 24, nonlinearity="relu", batch_first=True)
        nn.init.orthogonal_(model.weight_hh_l0, gain=gain)

        def loss_at(step):
            inputs = noise(step, 8, length, 3)
            states, _ = model(inputs)
            return (states[:, -1].mean(1) - inputs[:, :, 0].sum(1)).square().mean()

        return model, torch.optim.SGD(model.parameters(), lr=lr), loss_at

    return make


def wide_start(std):
    """A deep net that starts with weights far too large for its width."""

    def make():
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=std)

        def loss_at(step):
            inputs = noise(step, 64, 8)
            return (model(inputs) - inputs[:, :1]).square().mean()

        return model, torch.optim.SGD(model.parameters(), lr=0.01), loss_at

    return make


@pytest.mark.parametrize("task", [recurrence(1.55), recurrence(1.7)], ids=["gain 1.55", "gain 1.7"])
def test_an_explosion_is_named_and_clipped_before_anything_is_infinite(task):
    lost = train(task, 100, is_guarded=False)
    assert not math.isfinite(lost.losses[-1])
    run = train(task, 100)
    first = run.interventions[0]
    assert (first.step, first.diagnosis, first.remedy) == (0, "exploding_gradient", "clip_norm")
    assert math.isfinite(run.losses[1])
    assert first.change.after["norm"] < first.change.before["norm"] / 10
    assert run.is_finite
    assert run.end() < run.losses[0] / 100


@pytest.mark.parametrize("task", [recurrence(1.55), wide_start(1.0), wide_start(3.0)])
def test_without_the_loss_an_explosion_from_the_first_step_on_is_survived(task):
    run = train(task, 300, is_observed=False)
    assert run.interventions
    assert run.is_finite
    assert run.end() < run.losses[0]


@pytest.mark.parametrize("std", [0.7, 1.0, 3.0])
def test_weights_that_start_too_large_do_not_lose_the_run(std):
    run = train(wide_start(std), 300)
    assert run.interventions[0].diagnosis == "exploding_gradient" or std < 1
    assert run.is_finite
    assert run.stopped is None
    assert run.end() < run.losses[0]


def too_fast(optimizer, lr):
    """A net on inputs of deviation 5 with a learning rate that it cannot stand."""

    def make():
        model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))

        def loss_at(step):
            inputs = 5 * noise(step, 32, 6)
            return (model(inputs) - inputs.mean(1, keepdim=True)).square().mean()

        return model, optimizer(model.parameters(), lr=lr), loss_at

    return make


@pytest.mark.parametrize("lr", [0.05, 0.2, 1.0])
def test_divergence_is_undone_and_the_steps_are_shortened_while_the_loss_is_finite(lr):
    run = train(too_fast(torch.optim.SGD, lr), 300)
    assert all(math.isfinite(loss) for loss in run.losses)
    shorter = [record for record in run.interventions if record.remedy in ("scale_lr", "keep_clipping")]
    assert shorter
    for record in shorter:
        for name in record.change.before.keys() & {"lr", "max_norm"}:
            assert record.change.after[name] <= record.change.before[name]
    assert "rollback" in {remedy for _, _, remedy in run.acted}
    assert run.is_finite
    assert run.stopped is None
    assert run.end() < run.losses[0]


def straight_line(lr):
    """A linear model whose inputs have a curvature of 2: it diverges from a learning rate of 1 on."""

    def make():
        model = nn.Linear(4, 1)

        def loss_at(step):
            inputs = noise(step, 32, 4)
            return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()

        return model, torch.optim.SGD(model.parameters(), lr=lr), loss_at

    return make


@pytest.mark.parametrize("lr", [1.05, 1.2, 2.0, 10.0])
def test_a_learning_rate_beyond_the_edge_of_stability_does_not_lose_the_run(lr):
    run = train(straight_line(lr), 300)
    assert run.interventions
    assert run.is_finite
    assert run.end() < run.losses[0]


@pytest.mark.parametrize("lr", [1.2, 10.0])
def test_without_the_loss_the_growing_gradient_is_seen_and_the_run_stays_finite(lr):
    lost = train(straight_line(lr), 300, is_guarded=False)
    assert not math.isfinite(lost.losses[-1])
    run = train(straight_line(lr), 300, is_observed=False)
    assert run.interventions[0].diagnosis == "exploding_gradient"
    assert run.is_finite
    assert math.isfinite(run.losses[-1])


def scaled_absolute_error(dtype):
    """Finite gradients near 1e19, whose squares do not fit float32."""

    def make():
        model = nn.Linear(4, 4).to(dtype)

        def loss_at(step):
            inputs = noise(step, 8, 4).to(dtype)
            return 1e20 * (model(inputs) - inputs).abs().mean()

        return model, torch.optim.SGD(model.parameters(), lr=0.1), loss_at

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_that_overflows_is_called_exploding_and_its_direction_is_kept(dtype):
    plain = train(scaled_absolute_error(dtype), 1, is_guarded=False)
    run = train(scaled_absolute_error(dtype), 1)
    torch.manual_seed(0)
    start = scaled_absolute_error(dtype)()[0].weight.detach().float()
    (record,) = run.interventions
    assert (record.diagnosis, record.remedy) == ("exploding_gradient", "clip_norm")
    assert "non-finite" not in record.finding.message
    assert 1e19 < record.change.before["norm"] < math.inf
    moved, wanted = (other.model.weight.detach().float() - start for other in (run, plain))
    assert 0 < moved.norm() < 1
    assert nn.functional.cosine_similarity(moved.flatten(), wanted.flatten(), dim=0) > 0.95


def test_gradients_that_stay_near_the_limit_of_float32_still_teach():
    run = train(scaled_absolute_error(torch.float32), 60)
    assert all(record.diagnosis == "exploding_gradient" for record in run.interventions)
    assert run.end() < 0.5 * run.losses[0]


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
def test_a_finite_spike_never_reaches_the_squared_moments(optimizer, is_observed):
    """Its square is infinite, and divided by infinity every later update is 0: a run that stands still for good."""

    def spoil(step, inputs, targets):
        return inputs, targets * 1e16 if step == 30 else targets

    run = train(regression(optimizer, spoil), 200, is_observed=is_observed)
    assert math.isfinite(run.losses[30])
    assert {step for step, _, _ in run.acted} == {30}
    assert run.is_finite
    clean = train(regression(optimizer), 200, is_guarded=False)
    assert run.end() < 1.2 * clean.end()


@pytest.mark.parametrize(
    ("optimizer", "step_of_spike", "is_observed"),
    [
        ("sgd", 0, True),
        ("sgd", 3, True),
        ("sgd", 3, False),
        ("sgd", 10, True),
        ("sgd", 10, False),
        ("adamw", 3, True),
        ("adamw", 10, True),
        ("adamw", 10, False),
    ],
)
def test_a_spike_before_the_guard_is_armed_does_not_lose_the_run(optimizer, step_of_spike, is_observed):
    def spoil(step, inputs, targets):
        return inputs * 1e3 if step == step_of_spike else inputs, targets

    run = train(regression(optimizer, spoil), 300, is_observed=is_observed)
    clean = train(regression(optimizer), 300, is_guarded=False)
    assert run.is_finite
    assert run.end() < 2 * clean.end()
