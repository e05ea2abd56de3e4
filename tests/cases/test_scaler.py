"""Loss scaling: what GradScaler handles is no incident, and what it cannot handle is told."""

import math

import pytest
import torch
from guarded import noise
from torch import nn

import gradguard


class Mixed:
    """One scaler over networks with an optimizer and a guard each."""

    def __init__(self, count=1, is_fused=False, is_unscaled=False, init_scale=2.0**10, is_known=True):
        torch.manual_seed(0)
        self.models = [nn.Linear(6, 1) for _ in range(count)]
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=is_fused) for m in self.models]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=1000)
        self.guards = [
            gradguard.attach(m, o, scaler=self.scaler if is_known else None, name=str(i))
            for i, (m, o) in enumerate(zip(self.models, self.optimizers, strict=True))
        ]
        self.is_unscaled = is_unscaled
        self.true_norms = [math.nan] * count

    def step(self, step, factors=(1.0,), is_half=False):
        """Take one step with each; return which of them moved."""
        before = [model.weight.detach().clone() for model in self.models]
        for i, (model, optimizer, guard) in enumerate(zip(self.models, self.optimizers, self.guards, strict=True)):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16, enabled=is_half):
                loss = model(noise(step, 16, 6)).float().square().mean() * factors[i % len(factors)]
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            self.true_norms[i] = math.hypot(*(gradient.norm().item() for gradient in gradients))
            self.scaler.scale(loss).backward()
            guard.observe(loss)
            if self.is_unscaled:
                self.scaler.unscale_(optimizer)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        return [not torch.equal(old, model.weight) for old, model in zip(before, self.models, strict=True)]

    def finish(self):
        """Close the guards and return the records of each."""
        for guard in self.guards:
            guard.close()
        return [guard.records for guard in self.guards]


VARIANTS = pytest.mark.parametrize(
    ("is_fused", "is_unscaled"), [(False, False), (False, True), (True, False), (True, True)]
)


@VARIANTS
def test_norms_are_the_true_ones_whatever_the_scale(is_fused, is_unscaled):
    job = Mixed(is_fused=is_fused, is_unscaled=is_unscaled)
    for step in range(5):
        assert job.step(step) == [True]
        assert job.guards[0].last.global_norm == pytest.approx(job.true_norms[0], rel=1e-4)


@VARIANTS
def test_overflows_while_the_scale_is_found_are_the_scaler_s_and_no_incident(is_fused, is_unscaled):
    job = Mixed(is_fused=is_fused, is_unscaled=is_unscaled, init_scale=2.0**18)
    moved = [job.step(step, is_half=True)[0] for step in range(12)]
    assert False in moved
    assert moved[-1]
    (records,) = job.finish()
    assert [record for record in records if record.kind in ("intervention", "withheld")] == []
    skips = sum(record.data["skips"] for record in records if record.kind == "event" and record.event == "scaler_skip")
    assert skips == moved.count(False)


@VARIANTS
def test_an_infinite_loss_is_skipped_once_and_the_next_step_is_taken(is_fused, is_unscaled):
    job = Mixed(is_fused=is_fused, is_unscaled=is_unscaled)
    moved = [job.step(step, [math.inf if step == 1 else 1.0])[0] for step in range(4)]
    assert moved == [True, False, True, True]
    (records,) = job.finish()
    assert [record for record in records if record.kind == "intervention"] == []


@VARIANTS
@pytest.mark.parametrize("is_known", [True, False])
def test_a_skip_is_told_with_the_scale_that_the_scaler_has(is_fused, is_unscaled, is_known):
    """Before a fused optimizer's step the scale has not been lowered yet; unscaled and not handed in, it is unknown."""
    job = Mixed(is_fused=is_fused, is_unscaled=is_unscaled, is_known=is_known)
    for step in range(4):
        job.step(step, [math.inf if step == 1 else 1.0])
    (records,) = job.finish()
    told = [(r.message, r.data["loss_scale"]) for r in records if r.kind == "event" and r.event == "scaler_skip"]
    if not is_fused:
        assert told == ([("GradScaler skipped 1 step, scale now 512", 512)] if is_known else [])
    elif is_known or not is_unscaled:
        assert told == [("GradScaler skipped 1 step at scale 1024", 1024)]
    else:
        assert told == [("GradScaler skipped 1 step", 1)]


@VARIANTS
def test_one_bad_network_does_not_hold_the_other_back(is_fused, is_unscaled):
    job = Mixed(count=2, is_fused=is_fused, is_unscaled=is_unscaled)
    moved = [job.step(step, [1.0, math.inf if step == 1 else 1.0]) for step in range(4)]
    assert moved == [[True, True], [True, False], [True, True], [True, True]]
    first, second = job.finish()
    assert [record.event for record in first if record.kind == "event"] == ["attached", "closed"]
    assert [record.event for record in second if record.kind == "event"] == ["attached", "scaler_skip", "closed"]
    assert [record for record in (*first, *second) if record.kind == "intervention"] == []


@VARIANTS
def test_a_nan_that_no_scale_can_cure_is_told_as_a_collapse(is_fused, is_unscaled):
    job = Mixed(is_fused=is_fused, is_unscaled=is_unscaled)
    for step in range(20):
        job.step(step, [math.nan if step >= 3 else 1.0])
    (records,) = job.finish()
    told = [r.finding for r in records if r.kind == "intervention" and r.diagnosis == "loss_scale_collapse"]
    assert told
    assert "NaN" in told[0].message
    assert told[0].severity == "critical"
