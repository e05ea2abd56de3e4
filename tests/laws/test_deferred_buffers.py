"""With `sync: deferred` a bad batch leaves no trace in buffers, and nobody's graph or forward is disturbed."""

import math

import pytest
import torch
from deferring import NAN, batch, policy_of, train
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard


def asks_for_last(run, step):
    _ = run.guard.last


def test_asking_between_forward_and_backward_leaves_a_skip_and_the_buffers_alone(bits):
    """What the new forward wrote to BatchNorm stays, and its graph can still be walked."""
    options = {"losses": {30: NAN}, "inputs": {40: NAN}}
    deferred = train("default", "deferred", between=asks_for_last, **options)
    immediate = train("default", "immediate", between=asks_for_last, **options)
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)


class Masked(nn.Module):
    """Buffers that nobody writes to, a mask and an expanded one, and others written to or replaced in several ways."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("mask", torch.full((4,), -math.inf))
        self.register_buffer("expanded", torch.ones(1).expand(4))
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("spread", torch.zeros(1).expand(4))

    def forward(self, inputs):
        self.count += 1 + inputs.detach().sum()
        self.spread = inputs.detach().mean().expand(4)
        self.seen.data.add_(inputs.mean(0).detach())
        return (self.norm(self.layer(inputs)) * self.expanded).logaddexp(self.mask)


@pytest.mark.parametrize("asks", [True, False])
def test_a_nan_batch_leaves_no_trace_in_buffers(asks):
    """Nor are buffers touched that the model does not write to."""
    trained = {}
    for sync in ("immediate", "deferred"):
        torch.manual_seed(0)
        model = Masked()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        mask, expanded = model.mask, model.expanded
        with gradguard.attach(model, optimizer, policy_of("default", sync)) as guard:
            for step in range(20):
                optimizer.zero_grad()
                loss = model(batch(step) * (NAN if step in (7, 19) else 1.0)).square().mean()
                loss.backward()
                guard.observe(loss)
                optimizer.step()
                _ = guard.last if asks else None
                if step == 7 and sync == "deferred":
                    assert model.norm.num_batches_tracked == 7
                    assert model.norm.running_mean.isfinite().all()
        assert model.mask is mask
        assert model.expanded is expanded
        assert (mask._version, expanded._version) == (0, 0)
        trained[sync] = {name: value.clone() for name, value in model.named_buffers()}
    names = trained["immediate"].keys() - (set() if asks else {"seen"})  # which lacks the forward after the skip
    for name in names:
        assert torch.equal(trained["deferred"][name], trained["immediate"][name]), name
    assert trained["deferred"]["seen"].isfinite().all()


def test_a_graph_that_outlives_the_step_of_another_optimizer_can_still_be_walked():
    """Putting buffers back is no write that torch's version check should see."""
    trained = {}
    for sync in ("immediate", "deferred"):
        torch.manual_seed(0)
        body, head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1)
        model = nn.ModuleDict({"body": body, "head": head})
        parts = [torch.optim.AdamW(part.parameters(), fused=True) for part in (head, body)]
        guards = [gradguard.attach(model, optimizer, policy_of("default", sync)) for optimizer in parts]
        for step in range(20):
            features = body(batch(step))
            losses = [head(features.detach()).square().mean(), features.square().mean()]
            for loss, optimizer, guard in zip(losses, parts, guards, strict=True):
                optimizer.zero_grad()
                (loss * (NAN if step == 12 else 1.0)).backward()
                guard.observe(loss * (NAN if step == 12 else 1.0))
                optimizer.step()
        for guard in guards:
            guard.close()
        trained[sync] = model.state_dict()
    for name, value in trained["immediate"].items():
        assert torch.equal(trained["deferred"][name], value), name


class Written(TorchDispatchMode):
    """Notes where something is copied to."""

    def __init__(self):
        super().__init__()
        self.places = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.partition(".")[0] in ("copy_", "_foreach_copy_"):
            self.places |= {t.data_ptr() for t in (args[0] if isinstance(args[0], (list, tuple)) else args[:1])}
        return func(*args, **(kwargs or {}))


def test_a_buffer_that_the_model_does_not_write_to_is_not_written_to():
    """It may lie in memory that is read-only."""
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with gradguard.attach(model, optimizer, policy_of("default", "deferred")):
        for step in range(10):
            optimizer.zero_grad()
            (model(batch(step)) * (NAN if step == 7 else 1.0)).square().mean().backward()
            with Written() as written:
                optimizer.step()
            if 0 < step < 8:
                assert model.norm.running_mean.data_ptr() in written.places
            assert model.mask.data_ptr() not in written.places
            assert model.expanded.data_ptr() not in written.places
