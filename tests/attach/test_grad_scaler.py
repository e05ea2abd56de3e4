"""torch.amp.GradScaler: who skipped a step, on what norms it was judged, and what becomes of the scale."""

import math

import pytest
import torch
from torch import nn

import gradguard


SCALE = 1024.0


class ThroughHalf(nn.Module):
    """Its gradient passes through float16, so that a large one overflows once it is scaled."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 1)

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs)).half().float())


class Training:
    """One model, optimizer and scaler, stepped in either of the two ways that torch documents."""

    def __init__(self, is_fused, is_unscaled, *, is_guarded=True, policy=None, **options):
        torch.manual_seed(0)
        self.model = ThroughHalf()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=is_fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)
        self.is_unscaled = is_unscaled
        options = {"scaler": self.scaler, **options}
        self.guard = gradguard.attach(self.model, self.optimizer, policy, **options) if is_guarded else None

    def step(self, seed, *, is_overflow=False, is_bad_loss=False, on_unscaled=None):
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
        targets = inputs.sum(1, keepdim=True) * (1e4 if is_overflow else 1.0)
        self.optimizer.zero_grad()
        loss = (self.model(inputs) - targets).square().mean()
        self.scaler.scale(loss).backward()
        if self.is_unscaled:
            self.scaler.unscale_(self.optimizer)
        if on_unscaled is not None:
            on_unscaled(self.model.parameters())
        if self.guard is not None:
            self.guard.observe(math.nan if is_bad_loss else loss)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def weights(self, bits):
        """Return every bit of parameters and optimizer state."""
        named = bits(self.model, self.optimizer)
        return {
            name: value for name, value in named.items() if ".norm.running" not in name and ".num_batches" not in name
        }

    def told(self, kind):
        return [record for record in self.guard.records if record.kind == kind]


@pytest.fixture(params=[False, True], ids=["plain", "fused"])
def is_fused(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["scaled", "unscale_"])
def is_unscaled(request):
    return request.param


def test_a_healthy_run_is_bit_identical_and_so_is_the_scaler(is_fused, is_unscaled, bits):
    results = []
    for is_guarded in (False, True):
        training = Training(is_fused, is_unscaled, is_guarded=is_guarded)
        for seed in range(10):
            training.step(seed)
        results.append((bits(training.model, training.optimizer), training.scaler.state_dict()))
    assert results[0] == results[1]
    assert not [record for record in training.guard.records if record.kind != "event"]


def test_an_overflow_is_the_scaler_s_skip_and_runs_as_without_a_guard(is_fused, is_unscaled, bits):
    results = []
    for is_guarded in (False, True):
        training = Training(is_fused, is_unscaled, is_guarded=is_guarded)
        for seed in range(6):
            training.step(seed, is_overflow=seed == 2)
            if is_guarded and is_fused and seed == 2:
                assert training.guard.last.skipped
                assert training.guard.last.skipped_by == "scaler"
        results.append((bits(training.model, training.optimizer), training.scaler.state_dict()))
    assert results[0] == results[1]
    assert training.scaler.get_scale() == SCALE / 2
    (skip,) = [event for event in training.told("event") if event.event == "scaler_skip"]
    assert "1 step" in skip.message
    assert skip.data["skips"] == 1
    assert training.told("intervention") == []
    assert not training.guard.last.skipped


def test_a_guard_s_skip_leaves_the_weights_and_does_not_back_off_the_scale(is_fused, is_unscaled, bits):
    training = Training(is_fused, is_unscaled)
    for seed in range(2):
        training.step(seed)
    before = training.weights(bits)
    training.step(2, is_bad_loss=True)
    assert training.guard.last.skipped_by == "guard"
    assert training.weights(bits) == before
    assert training.scaler.get_scale() == SCALE
    training.step(3)
    assert not training.guard.last.skipped
    assert [record.remedy for record in training.told("intervention")] == ["skip_step"]
    assert [event.event for event in training.told("event")] == ["attached"]


def test_when_both_would_skip_it_is_the_scaler_s_once_and_the_next_step_is_taken(is_fused, is_unscaled, bits):
    training = Training(is_fused, is_unscaled)
    for seed in range(2):
        training.step(seed)
    before = training.weights(bits)
    training.step(2, is_overflow=True, is_bad_loss=True)
    assert training.weights(bits) == before
    assert training.scaler.get_scale() == SCALE / 2
    training.step(3)
    assert not training.guard.last.skipped
    assert training.weights(bits) != before
    assert [event.event for event in training.told("event")] == ["attached", "scaler_skip"]
    assert training.told("intervention") == []


CLIPS = {
    "clip_norm": ({"max_norm": 0.5}, lambda params: torch.nn.utils.clip_grad_norm_(params, 0.5)),
    "clip_value": ({"max_value": 0.05}, lambda params: torch.nn.utils.clip_grad_value_(params, 0.05)),
}


@pytest.mark.parametrize("remedy", CLIPS)
def test_limits_are_on_unscaled_gradients(is_fused, is_unscaled, remedy):
    options, clip_as_torch = CLIPS[remedy]
    policy = gradguard.Policy(rules=[{"when": "always", "do": {remedy: options}}])
    training = Training(is_fused, is_unscaled, policy=policy)
    twin = Training(is_fused, True, is_guarded=False)
    for seed in range(5):
        training.step(seed)
        twin.step(seed, on_unscaled=clip_as_torch)
    for name, param in twin.model.named_parameters():
        torch.testing.assert_close(training.model.get_parameter(name), param, rtol=1e-4, atol=1e-6)


def test_the_recorded_norm_is_the_unscaled_one_and_the_scale_stands_beside_it(is_fused, is_unscaled, tmp_path):
    training = Training(is_fused, is_unscaled, run_dir=tmp_path / "run")
    twin = Training(is_fused, True, is_guarded=False)
    expected = []
    for seed in range(4):
        training.step(seed)
        twin.step(seed, on_unscaled=lambda params: expected.append(float(nn.utils.clip_grad_norm_(params, math.inf))))
    training.guard.close()
    statistics = gradguard.read_run(tmp_path / "run").statistics
    assert list(statistics["global_norm"]) == pytest.approx(expected, rel=1e-5)
    assert list(statistics["loss_scale"]) == [SCALE] * 4
