"""rollback is bit-exact for every optimizer of torch.optim, and says why when it cannot act."""

import copy
import inspect
import io
import math

import pytest
import torch
from aim import aim, aim_at, finding_about, keep_state
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES, Unavailable
from gradguard.snapshots.ring import Snapshots


Rollback = REMEDIES.get("rollback")
OPTIMIZERS = [
    name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
]
# Each in the implementations that it has beside its default: "Adam-fused".
VARIANTS = OPTIMIZERS + [
    f"{name}-{how}"
    for name in OPTIMIZERS
    for how in ("foreach", "fused")
    if how in inspect.signature(getattr(torch.optim, name)).parameters
]
OPTIONS = {"SGD": {"momentum": 0.9}, "LBFGS": {"lr": 0.1, "max_iter": 3}, "Adam": {"amsgrad": True}}


class Rows(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(6, 3, sparse=True)

    def forward(self, inputs):
        return self.rows(inputs.abs().mul(10).long().sum(1) % 6)


def build(name):
    torch.manual_seed(0)
    name, _, how = name.partition("-")
    if name == "SparseAdam":
        model = Rows()
    else:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    params = [p for p in model.parameters() if p.ndim == 2] if name == "Muon" else list(model.parameters())
    return model, getattr(torch.optim, name)(params, **OPTIONS.get(name, {}), **({how: True} if how else {}))


def train(model, optimizer, seeds):
    for seed in seeds:

        def evaluate(seed=seed):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))).square().mean()
            loss.backward()
            return loss

        optimizer.step(evaluate)


@pytest.fixture
def state(bits):
    """Function that returns every bit of model and optimizer."""
    return lambda target: bits(target.model, target.optimizer)


def target_of(model, optimizer, step=0):
    target = aim_at(model, optimizer, step=step)
    keep_state(target)
    return target


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("num_before", [0, 3])
def test_the_state_of_the_snapshot_comes_back_to_the_last_bit(name, num_before, state):
    """Without a step before it, the snapshot is from before most optimizers have any state."""
    model, optimizer = build(name)
    train(model, optimizer, range(num_before))
    target = target_of(model, optimizer, step=num_before)
    expected = state(target)
    train(model, optimizer, range(num_before, num_before + 4))
    Rollback().apply(target, finding_about(), None)
    assert state(target) == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_what_follows_is_what_would_have_followed(name, state):
    model, optimizer = build(name)
    train(model, optimizer, range(3))
    target = target_of(model, optimizer)
    train(model, optimizer, range(3, 6))
    expected = state(target)
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            tensor.fill_(math.nan)
    Rollback().apply(target, finding_about(), None)
    train(model, optimizer, range(3, 6))
    assert state(target) == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_a_snapshot_on_disk_is_as_exact(name, state, tmp_path):
    model, optimizer = build(name)
    train(model, optimizer, range(3))
    target = target_of(model, optimizer)
    expected = state(target)
    target.snapshots = Snapshots(model, optimizer, 10, 0.9, folder=tmp_path)
    assert target.snapshots.take(3, {}, is_confirmed=True)
    train(model, optimizer, range(3, 6))
    Rollback().apply(target, finding_about(), None)
    assert state(target) == expected


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_snapshot_that_was_saved_to_disk_is_as_exact(name, state):
    model, optimizer = build(name)
    train(model, optimizer, range(3))
    target = target_of(model, optimizer)
    expected = state(target)
    file = io.BytesIO()
    torch.save(target.snapshots.state_dict(), file)
    file.seek(0)
    train(model, optimizer, range(3, 6))
    target.snapshots = Snapshots(model, optimizer, 10, 0.9)
    target.snapshots.load_state_dict(torch.load(file, weights_only=True))
    Rollback().apply(target, finding_about(), None)
    assert state(target) == expected


def test_the_step_is_dropped_and_the_buffers_are_those_of_the_snapshot():
    model, optimizer = build("Adam")
    target = target_of(model, optimizer)
    expected = copy.deepcopy(dict(model.named_buffers()))
    train(model, optimizer, range(2))
    target.buffers.accept()
    model(torch.full((8, 3), math.nan)).mean().backward()
    Rollback().apply(target, finding_about(), None)
    assert target.is_skipped
    assert all(param.grad is None for param in model.parameters())
    torch.testing.assert_close(dict(model.named_buffers()), expected, rtol=0, atol=0)
    model(torch.randn(8, 3))
    target.buffers.restore()
    torch.testing.assert_close(dict(model.named_buffers()), expected, rtol=0, atol=0)


def test_learning_rates_stay_with_their_schedule():
    model, optimizer = build("Adam")
    target = target_of(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, range(2))
    scheduler.step()
    Rollback().apply(target, finding_about(), None)
    assert optimizer.param_groups[0]["lr"] == 0.0005


def test_the_change_tells_how_many_steps_were_lost():
    model, optimizer = build("SGD")
    target = target_of(model, optimizer, step=40)
    target.stats.step = 47
    change = Rollback().apply(target, finding_about(), None)
    assert change.before == {"step": 47}
    assert change.after == {"step": 40, "steps_lost": 7}
    assert "7 steps" in change.summary
    assert target.restored is target.snapshots.good


def assert_cannot_act(target, reason):
    weights = [param.detach().clone() for param in target.params]
    with pytest.raises(Unavailable, match=reason):
        Rollback().apply(target, finding_about(), None)
    assert not target.is_skipped
    assert all(param.grad is not None for param in target.params)
    assert all(torch.equal(param, weight) for param, weight in zip(target.params, weights, strict=True))


def test_without_snapshots_it_says_so_and_changes_nothing():
    assert_cannot_act(aim(torch.ones(2)), "keeps no snapshots")


def test_before_the_first_snapshot_it_says_so_and_changes_nothing():
    target = aim(torch.ones(2))
    target.snapshots = Snapshots(target.model, target.optimizer, 10, 0.9)
    assert_cannot_act(target, "none was taken yet")


def test_a_snapshot_that_was_refused_for_its_size_is_told():
    target = aim(torch.ones(2))
    target.snapshots = Snapshots(target.model, target.optimizer, 10, 1e-12)
    target.snapshots.take(0, {}, is_confirmed=True)
    assert_cannot_act(target, "max_memory_share")


def test_a_snapshot_that_was_refused_for_a_bad_state_is_told():
    target = aim(torch.ones(2))
    target.snapshots = Snapshots(target.model, target.optimizer, 10, 0.9)
    with torch.no_grad():
        target.params[0][0] = math.nan
    target.snapshots.take(0, {}, is_confirmed=True)
    with pytest.raises(Unavailable, match="p0 is not finite"):
        Rollback().apply(target, finding_about(), None)


def test_a_bad_state_after_a_good_snapshot_does_not_cost_the_snapshot():
    target = aim(torch.ones(2))
    keep_state(target)
    with torch.no_grad():
        target.params[0][0] = math.nan
    target.snapshots.take(5, {}, is_confirmed=True)
    Rollback().apply(target, finding_about(), None)
    assert target.params[0].tolist() == [1.0, 1.0]


def test_a_resumed_run_rolls_back_to_a_state_from_before_the_interruption(state):
    policy = gradguard.Policy(
        rules=[
            {"name": "back", "when": "nonfinite", "do": "rollback"},
            {"name": "watch", "when": "exploding_gradient", "do": "notify"},
            {"name": "deep", "when": "vanishing_gradient", "do": "notify"},
            {"name": "spikes", "when": "loss_spike", "do": "notify"},
        ],
        sinks=[],
    )

    def steps(model, optimizer, guard, seeds, bad=()):
        for seed in seeds:
            optimizer.zero_grad()
            loss = model(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))).square().mean()
            (loss * math.nan if seed in bad else loss).backward()
            guard.observe(loss)
            optimizer.step()
        assert [record.message for record in guard.records if getattr(record, "event", "") == "internal_error"] == []

    model, optimizer = build("Adam")
    guard = gradguard.attach(model, optimizer, policy)
    steps(model, optimizer, guard, range(40))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict(), guard.state_dict()), file)
    file.seek(0)
    steps(model, optimizer, guard, range(40, 60), bad={42})

    saved_model, saved_optimizer, saved_guard = torch.load(file, weights_only=True)
    resumed, resumed_optimizer = build("Adam")
    resumed.load_state_dict(saved_model)
    resumed_optimizer.load_state_dict(saved_optimizer)
    resumed_guard = gradguard.attach(resumed, resumed_optimizer, policy)
    resumed_guard.load_state_dict(saved_guard)
    steps(resumed, resumed_optimizer, resumed_guard, range(40, 60), bad={42})
    acted = [(r.step, r.remedy) for r in resumed_guard.records if r.kind == "intervention"]
    assert acted == [(42, "rollback")] == [(r.step, r.remedy) for r in guard.records if r.kind == "intervention"]
    torch.testing.assert_close(resumed.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("preset", ["default", "pretrain", "finetune", "rnn"])
def test_where_no_snapshot_can_be_kept_bad_batches_never_reach_the_weights(preset):
    """A rung whose rollback is not to be had must hand over to one that keeps the step from being taken."""
    resolved = gradguard.load_policy(preset).model_dump(mode="json")
    policy = gradguard.Policy.model_validate({**resolved, "snapshots": {"max_memory_share": 1e-12}, "sinks": []})
    model, optimizer = build("Adam")
    guard = gradguard.attach(model, optimizer, policy)
    try:
        for step in range(60):
            inputs = torch.randn(8, 3)
            inputs[0] = math.nan if 20 <= step < 40 else inputs[0]
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            assert all(bool(param.isfinite().all()) for param in model.parameters()), step
    except gradguard.TrainingStopped:
        assert all(bool(param.isfinite().all()) for param in model.parameters())
