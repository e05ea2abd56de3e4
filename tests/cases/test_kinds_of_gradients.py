"""Gradients that are sparse, complex, absent, of another precision, or of parameters that are frozen for a while."""

import math

import pytest
import torch
from guarded import noise, train, without
from torch import nn

import gradguard


BAD, SPIKE = 30, 45


def embedding(optimizer):
    """A table with sparse gradients, some rows read twice; one bad and one far-off batch."""

    def make():
        model = nn.EmbeddingBag(20, 4, sparse=True, mode="sum")

        def loss_at(step):
            index = torch.randint(0, 20, (8, 3), generator=torch.Generator().manual_seed(step))
            factor = {BAD: math.nan, SPIKE: 1e6}.get(step, 1.0)
            return factor * (model(index) - 1.0).square().mean()

        return model, optimizer(model.parameters()), loss_at

    return make


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SparseAdam(p, lr=0.01)],
    ids=["SGD", "SparseAdam"],
)
def test_sparse_gradients_are_judged_clipped_and_dropped_without_being_made_dense(optimizer, is_observed):
    layouts = set()

    def after(model, optimizer, step):
        if model.weight.grad is not None:
            layouts.add(model.weight.grad.layout)

    run = train(embedding(optimizer), 60, after=after, is_observed=is_observed)
    assert [step for step, _, _ in run.acted] == [BAD, SPIKE]
    assert run.acted[0][1:] == ("nonfinite", "skip_step")
    assert run.interventions[0].finding.evidence["origin"] == "loss"
    assert run.acted[1][1:] == (("loss_spike", "skip_step") if is_observed else ("exploding_gradient", "clip_norm"))
    assert layouts == {torch.sparse_coo}
    assert run.is_finite
    assert run.end() < run.losses[0]


def complex_weights(optimizer):
    """A complex matrix that learns a rotation."""

    def make():
        weight = nn.Parameter(torch.eye(3, dtype=torch.complex64))
        model = nn.ParameterDict({"turn": weight})

        def loss_at(step):
            inputs = torch.complex(noise(step, 8, 3), noise(step + 500, 8, 3))
            factor = {BAD: math.nan, SPIKE: 1e6}.get(step, 1.0)
            return factor * (inputs @ weight - 1j * inputs).abs().square().mean()

        return model, optimizer(model.parameters()), loss_at

    return make


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=0.02), lambda p: torch.optim.Adam(p, lr=0.01)],
    ids=["SGD", "Adam"],
)
def test_complex_gradients_are_judged_clipped_and_dropped(optimizer, is_observed):
    run = train(complex_weights(optimizer), 150, is_observed=is_observed)
    assert [step for step, _, _ in run.acted] == [BAD, SPIKE]
    assert run.acted[0][1:] == ("nonfinite", "skip_step")
    assert run.interventions[0].finding.parameters == ("turn",)
    assert run.is_finite
    assert run.end() < 0.5 * run.losses[0]


def branches():
    """A trunk with heads that take turns, and one that nothing ever uses."""
    heads = {name: nn.Linear(4, 1) for name in ("even", "odd", "never")}
    model = nn.ModuleDict({"trunk": nn.Linear(4, 4), **heads})

    def loss_at(step):
        head = "odd" if step % 2 else "even"
        return model[head](model["trunk"](noise(step, 8, 4))).square().mean() * (math.nan if step == BAD else 1.0)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1), loss_at


def test_a_missing_gradient_is_no_finding_and_is_never_filled_with_zeros(bits):
    """With zeros in its place, weight decay would move a weight that nothing uses."""
    start = {name: tensor.clone() for name, tensor in _initial(branches).state_dict().items()}
    run = train(branches, 120)
    assert run.acted == [(BAD, "nonfinite", "skip_step")]
    assert {(record.diagnosis, record.reason) for record in run.withheld} == {("frozen_parameters", "below_severity")}
    unused = run.model["never"]
    assert torch.equal(unused.weight.detach(), start["never.weight"])
    assert unused.weight.grad is None
    assert unused.weight not in run.optimizer.state
    unseen = train(branches, without(120, [BAD]), is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(unseen.model, unseen.optimizer)


def _initial(make):
    torch.manual_seed(0)
    return make()[0]


def thawing():
    """A head on a body that is frozen for the first steps; the body's gradient is NaN at a later one."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)

    def loss_at(step):
        model[0].requires_grad_(step >= 20)
        hidden = model[0](noise(step, 8, 4))
        if step == BAD:
            hidden = hidden + (hidden * 0).square().sum().sqrt()
        return model[1](hidden).square().mean()

    return model, torch.optim.SGD(model.parameters(), lr=0.01), loss_at


def test_frozen_parameters_are_left_alone_and_judged_from_the_step_that_unfroze_them():
    body = _initial(thawing)[0].weight.detach().clone()
    frozen = train(thawing, 20)
    assert torch.equal(frozen.model[0].weight.detach(), body)
    run = train(thawing, 50)
    assert run.acted == [(BAD, "nonfinite", "skip_step")]
    assert "0.weight" in run.interventions[0].finding.parameters
    assert not torch.equal(run.model[0].weight.detach(), body)


def test_a_nan_in_a_gradient_that_no_optimizer_owns_is_no_reason_to_skip():
    """A frozen or foreign parameter's gradient moves nothing."""
    model = nn.ModuleDict({"trained": nn.Linear(3, 1), "other": nn.Linear(3, 1)})
    optimizer = torch.optim.SGD(model["trained"].parameters(), lr=0.1)
    guard = gradguard.attach(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        model["trained"](noise(step, 4, 3)).square().mean().backward()
        model["other"].weight.grad = torch.full((1, 3), math.nan)
        optimizer.step()
        assert not guard.last.skipped
    assert guard.last.findings == ()


def test_gradients_of_zero_everywhere_are_survived_and_learned_from():
    """A loss that is 0 for a while is no baseline of 0 from which everything explodes."""

    def make():
        model = nn.Linear(4, 1)

        def loss_at(step):
            error = (model(noise(step, 16, 4)) - noise(step, 16, 4)[:, :1]).square().mean()
            return error * (0.0 if 10 <= step < 60 else 1.0)

        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), loss_at

    run = train(make, 150)
    assert run.alarms == []
    assert run.end() < 0.01


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_guarded_alike(dtype, optimizer):
    def make():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)

        def loss_at(step):
            inputs = noise(step, 16, 4).to(dtype)
            factor = {BAD: math.nan, SPIKE: 1e6}.get(step, 1.0)
            return factor * (model(inputs) - inputs[:, :1]).square().mean()

        return model, optimizer(model.parameters(), lr=0.01), loss_at

    run = train(make, 100)
    assert run.acted == [(BAD, "nonfinite", "skip_step"), (SPIKE, "loss_spike", "skip_step")]
    assert run.is_finite


def test_double_precision_gradients_beyond_float32_are_just_large():
    """In float64 a norm of 1e60 is nothing special, and a run that is scaled so learns as if it were not."""

    def scaled(factor):
        def make():
            model = nn.Linear(4, 1).double()

            def loss_at(step):
                inputs = noise(step, 32, 4).double()
                return factor * (model(inputs) - inputs[:, :1]).square().mean()

            return model, torch.optim.Adam(model.parameters(), lr=1e-2, eps=0.0), loss_at

        return make

    run = train(scaled(2.0**200), 60)
    assert run.alarms == []
    plain = train(scaled(1.0), 60, is_guarded=False)
    assert run.end() / 2.0**200 == pytest.approx(plain.end(), rel=1e-6)
