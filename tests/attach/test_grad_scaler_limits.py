"""torch.amp.GradScaler beyond the single step: many skips, huge scales, several optimizers, scalers that are off."""

import math

import pytest
import torch
from torch import nn

import gradguard


KINDS = [False, True]


def regression(is_fused, *, with_norm=False):
    torch.manual_seed(0)
    body = [nn.Linear(4, 6), nn.BatchNorm1d(6)] if with_norm else [nn.Linear(4, 6)]
    model = nn.Sequential(*body, nn.Tanh(), nn.Linear(6, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=is_fused)


def step(model, optimizer, scaler, guard, seed, factor=1.0):
    """One step on a batch whose loss, and gradient, is multiplied by `factor`."""
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() * factor
    scaler.scale(loss).backward()
    if guard is not None:
        guard.observe(loss)
    scaler.step(optimizer)
    scaler.update()


def events(guard, event):
    return [record for record in guard.records if record.kind == "event" and record.event == event]


@pytest.mark.parametrize("is_fused", KINDS)
def test_a_scale_that_grows_without_end_is_no_finding(is_fused):
    """On float32 models nothing overflows, so the scale doubles for ever; scaled norms leave float32 long before."""
    model, optimizer = regression(is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_factor=16.0, growth_interval=1)
    guard = gradguard.attach(model, optimizer, scaler=scaler)
    for seed in range(26):
        step(model, optimizer, scaler, guard, seed)
        assert not guard.last.findings, scaler.get_scale()
        assert 0.01 < guard.last.global_norm < 100
    assert scaler.get_scale() > 1e30


@pytest.mark.parametrize("is_fused", KINDS)
def test_a_scale_that_falls_and_falls_is_told_once_as_a_collapse(is_fused):
    model, optimizer = regression(is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    guard = gradguard.attach(model, optimizer, scaler=scaler)
    step(model, optimizer, scaler, guard, 0)
    for seed in range(8):
        step(model, optimizer, scaler, guard, seed, factor=1e38)
    step(model, optimizer, scaler, guard, 1)
    assert scaler.get_scale() == 2.0**52
    told = [record for record in guard.records if record.kind == "intervention"]
    assert [(record.diagnosis, record.remedy) for record in told] == [("loss_scale_collapse", "notify")]
    assert told[0].finding.evidence["kind"] == "Inf"
    assert told[0].finding.value == 5
    assert sum(event.data["skips"] for event in events(guard, "scaler_skip")) == 8


@pytest.mark.parametrize("is_fused", KINDS)
def test_a_collapse_by_nan_is_told_from_one_by_overflow(is_fused):
    """No scale cures a NaN: the advice is another one."""
    model, optimizer = regression(is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = gradguard.attach(model, optimizer, scaler=scaler)
    for seed in range(10):
        step(model, optimizer, scaler, guard, seed, factor=math.nan if seed > 1 else 1.0)
    (told,) = [record for record in guard.records if record.kind == "intervention"]
    assert told.diagnosis == "loss_scale_collapse"
    assert told.finding.evidence["kind"] == "NaN"


@pytest.mark.parametrize("is_fused", KINDS)
def test_a_nan_that_the_scaler_skips_leaves_the_buffers_finite(is_fused):
    """The scaler spares the weights, but the forward pass has written the NaN into BatchNorm's statistics by then."""
    model, optimizer = regression(is_fused, with_norm=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = gradguard.attach(model, optimizer, scaler=scaler)
    for seed in range(3):
        step(model, optimizer, scaler, guard, seed)
    optimizer.zero_grad()
    loss = model(torch.full((16, 4), math.nan)).mean()
    scaler.scale(loss).backward()
    guard.observe(loss)
    scaler.step(optimizer)
    scaler.update()
    for seed in range(3, 6):
        step(model, optimizer, scaler, guard, seed)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert not guard.last.skipped


@pytest.mark.parametrize("is_fused", KINDS)
def test_the_loss_of_a_step_that_the_scaler_skipped_does_not_count_for_the_next(is_fused, tmp_path):
    model, optimizer = regression(is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    guard = gradguard.attach(model, optimizer, scaler=scaler, run_dir=tmp_path / "run")
    losses = []
    for seed in range(6):
        with torch.no_grad():
            inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
            losses.append(float((model(inputs) - inputs.sum(1, keepdim=True)).square().mean()))
        step(model, optimizer, scaler, guard, seed, factor=1e36 if seed == 3 else 1.0)
    guard.close()
    statistics = gradguard.read_run(guard.run_dir).statistics
    assert statistics["loss"][-2:] == pytest.approx(losses[-2:], rel=1e-6)


@pytest.mark.parametrize("is_fused", KINDS)
@pytest.mark.parametrize("victim", [0, 1])
def test_with_two_optimizers_only_the_one_that_overflowed_is_told_as_skipped(is_fused, victim):
    pairs = [regression(is_fused) for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    guards = [gradguard.attach(model, optimizer, scaler=scaler) for model, optimizer in pairs]
    before = []
    for seed in range(5):
        before.append([model[0].weight.detach().clone() for model, _ in pairs])
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
        for index, (model, optimizer) in enumerate(pairs):
            optimizer.zero_grad()
            factor = 1e36 if seed == 2 and index == victim else 1.0
            loss = (model(inputs) - 1.0).square().mean() * factor
            scaler.scale(loss).backward()
            guards[index].observe(loss)
        for _, optimizer in pairs:
            scaler.step(optimizer)
        scaler.update()
    moved = [not torch.equal(before[2][index], before[3][index]) for index in range(2)]
    assert moved == [index != victim for index in range(2)]
    skips = [sum(event.data["skips"] for event in events(guard, "scaler_skip")) for guard in guards]
    assert skips == [int(index == victim) for index in range(2)]
    assert not [record for guard in guards for record in guard.records if record.kind != "event"]


@pytest.mark.parametrize("is_fused", KINDS)
def test_a_scaler_that_is_switched_off_changes_nothing(is_fused, bits):
    results = []
    for is_guarded in (False, True):
        model, optimizer = regression(is_fused)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        guard = gradguard.attach(model, optimizer, scaler=scaler) if is_guarded else None
        for seed in range(5):
            step(model, optimizer, scaler, guard, seed)
        if is_guarded:
            before = bits(model, optimizer)
            step(model, optimizer, scaler, guard, 5, factor=math.nan)
            assert guard.last.skipped_by == "guard"
            assert bits(model, optimizer) == before
        results.append(bits(model, optimizer))
    assert results[0] == results[1]


def test_a_fused_optimizer_s_scaler_is_seen_without_being_handed_over():
    model, optimizer = regression(is_fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    guard = gradguard.attach(model, optimizer)
    norms = []
    for seed in range(4):
        step(model, optimizer, scaler, guard, seed, factor=1e36 if seed == 2 else 1.0)
        norms.append(guard.last.global_norm)
        assert guard.last.skipped_by == ("scaler" if seed == 2 else None)
    assert max(norms[:2]) < 100
    assert len(events(guard, "scaler_skip")) == 1


@pytest.mark.parametrize("is_fused", KINDS)
def test_a_scaler_s_skip_leaves_a_learning_rate_cut_exact(is_fused):
    model, optimizer = regression(is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": 0.5}}]}])
    guard = gradguard.attach(model, optimizer, policy, scaler=scaler)
    for seed in range(6):
        optimizer.zero_grad()
        if seed == 1:
            guard.observe(math.nan)
        step(model, optimizer, scaler, guard, seed, factor=1e36 if seed == 3 else 1.0)
        assert optimizer.param_groups[0]["lr"] == 0.01
    assert guard.last.lr_factor == 0.5
