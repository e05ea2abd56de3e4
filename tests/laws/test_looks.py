"""A look into a step that is not finite leaves no trace, and a resumed run looks as the uninterrupted one does."""

import io
import math

import pytest
import torch
from guarded import noise
from torch import nn

import gradguard


class Net(nn.Module):
    """Everything that a forward pass may change: running statistics, dropout, a counter, a list, a buffer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.state = nn.BatchNorm1d(8, momentum=None)
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3))
        self.register_buffer("mean", torch.zeros(8))
        self.calls, self.seen, self.is_bad = 0, [], False

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        h = self.body(x)
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        h = self.state(h) + self.mean
        return self.head(h.sqrt() if self.is_bad else h)


class Run:
    def __init__(self, rerun, run_dir=None):
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        rules = [{"when": "nonfinite", "do": "skip_step"}]
        policy = gradguard.Policy(rules=rules, monitor={"rerun": rerun}, sinks=[])
        self.guard = gradguard.attach(self.model, self.optimizer, policy, run_dir=run_dir)

    def go(self, steps):
        for step in steps:
            self.model.is_bad = step in (4, 5, 9, 15)
            x = noise(step, 16, 6)
            if step == 7:
                x[3] = math.nan
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean()
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
        return self

    def found(self):
        return [record.finding for record in self.guard.records if record.kind == "intervention"]

    def origins(self):
        return [(f.step, f.message, f.parameters, str(f.evidence)) for f in self.found()]

    def stages(self):
        return [finding.evidence["origin"] for finding in self.found()]


def test_a_run_that_is_looked_into_is_the_one_that_is_not(bits):
    looked, left_alone = Run(rerun=True).go(range(20)), Run(rerun=False)
    left_alone.go(range(20))
    assert looked.stages() == ["forward", "forward", "input", "forward", "forward"]
    assert left_alone.stages() == ["unknown", "unknown", "input", "unknown", "unknown"]
    assert (left_alone.model.calls, left_alone.model.seen) == (looked.model.calls, looked.model.seen)
    assert bits(looked.model, looked.optimizer) == bits(left_alone.model, left_alone.optimizer)


@pytest.mark.parametrize("rerun", [True, False])
def test_random_numbers_go_on_as_if_nobody_had_looked(rerun):
    Run(rerun).go(range(20))
    drawn = torch.rand(4)
    torch.manual_seed(0)
    run = Run(False)
    run.go(range(20))
    assert torch.equal(torch.rand(4), drawn)


@pytest.mark.parametrize("stop", [0, 5, 6, 8, 12])
def test_a_resumed_run_finds_the_same_origins(stop):
    whole = Run(rerun=True).go(range(20)).origins()
    first = Run(rerun=True).go(range(stop))
    file = io.BytesIO()
    torch.save(
        [first.model.state_dict(), first.optimizer.state_dict(), first.guard.state_dict(), torch.get_rng_state()], file
    )
    file.seek(0)
    model, optimizer, guard, random = torch.load(file, weights_only=True)
    second = Run(rerun=True)
    second.model.load_state_dict(model)
    second.optimizer.load_state_dict(optimizer)
    second.guard.load_state_dict(guard)
    torch.set_rng_state(random)
    assert first.origins() + second.go(range(stop, 20)).origins() == whole


def test_a_scaler_that_looks_for_its_scale_is_left_alone():
    """An overflow that GradScaler skips is nothing to be looked into."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1000)
    guard = gradguard.attach(model, optimizer, scaler=scaler)
    calls = []
    forward = model.forward
    model.forward = lambda x: (calls.append(0), forward(x))[1]
    for step in range(6):
        optimizer.zero_grad()
        loss = 1e3 * model(noise(step, 4, 6)).square().mean()
        scaler.scale(loss).backward()
        guard.observe(loss)
        scaler.step(optimizer)
        scaler.update()
    assert len(calls) == 6
    assert [record.event for record in guard.records if record.kind == "event"].count("scaler_skip") >= 1
