"""A pre-flight leaves everything bit for bit as it was, whether it succeeds, finds something or the training raises."""

import io
import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy

import gradguard


LAW = settings(max_examples=30, deadline=None, derandomize=True)
OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True),
    lambda p: torch.optim.LBFGS(p, 0.5),
]


class Stateful(nn.Module):
    """Counts, remembers, draws from three generators, and raises at a given call."""

    def __init__(self, raises_at=None):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.last = nn.Linear(8, 3)
        self.calls, self.log, self.hidden = 0, [], torch.zeros(8)
        self.raises_at = raises_at
        self.lock = threading.Lock()  # so that it cannot be copied

    def forward(self, x):
        self.calls += 1
        self.log.append(self.calls)
        x = x.add_(random.random() * 1e-3 + np.random.rand() * 1e-3)
        x = self.drop(torch.relu(self.norm(self.first(x))))
        self.hidden = self.hidden + x.detach().mean(0)
        self.norm.running_mean.data.mul_(0.99)
        if self.raises_at is not None and len(self.log) > self.raises_at:
            raise RuntimeError("on purpose")
        return self.last(x)


def training(optimizer, raises_at=None):
    model = Stateful(raises_at)
    made = optimizer(model.parameters())
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    for _ in range(2):
        model.log.clear()
        made.zero_grad()

        def closure():
            model.log.clear()
            made.zero_grad()
            loss = cross_entropy(model(x.clone()), y)
            loss.backward()
            return loss

        made.step(closure)
    return model, made, (x, y)


def everything(bits, model, optimizer, batch):
    found = bits(model, optimizer)
    found["grads"] = [None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()]
    found["flags"] = [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]
    found["python"] = model.calls, list(model.log), model.hidden.tolist(), set(model.__dict__)
    found["hooks"] = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    found["batch"] = [tensor.tolist() for tensor in batch]
    found["identity"] = [(id(p), p.data_ptr()) for p in model.parameters()]
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nothing_changes(bits, optimizer):
    model, made, batch = training(optimizer)
    before = everything(bits, model, made, batch)
    report = gradguard.preflight(model, made, batch, cross_entropy, overfit=True, overfit_steps=3)
    assert report.overfit is not None
    report.show(Console(file=io.StringIO()))
    assert str(report)
    assert everything(bits, model, made, batch) == before


@LAW
@given(st.integers(0, 8), st.sampled_from(OPTIMIZERS), st.sampled_from(["forward", "loss", "interrupt"]))
def test_nothing_changes_wherever_it_raises(bits, call, optimizer, place):
    torch.manual_seed(0)
    model, made, batch = training(optimizer)
    calls = [0]

    def loss(output, target):
        calls[0] += 1
        if place == "loss" and calls[0] > call:
            raise ValueError("on purpose")
        if place == "interrupt" and calls[0] > call:
            raise KeyboardInterrupt
        return cross_entropy(output, target)

    if place == "forward":
        model.raises_at = call if call < 3 else None
    before = everything(bits, model, made, batch)
    if place == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            gradguard.preflight(model, made, batch, loss)
    else:
        gradguard.preflight(model, made, batch, loss)
    assert everything(bits, model, made, batch) == before


def test_a_guarded_optimizer_keeps_its_guard_and_the_guard_sees_nothing():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # puts itself in place of optimizer.step
    with gradguard.attach(model, optimizer) as guard:
        before = guard.state_dict()
        gradguard.preflight(model, optimizer, (torch.randn(8, 4), torch.randint(2, (8,))), cross_entropy)
        assert str(guard.state_dict()) == str(before)


def test_a_warm_up_from_zero_is_tried_with_the_rate_that_it_leads_to():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    assert optimizer.param_groups[0]["lr"] == 0
    report = gradguard.preflight(model, optimizer, (torch.randn(8, 4), torch.randint(2, (8,))), cross_entropy)
    assert report.ok
    assert optimizer.param_groups[0]["lr"] == 0
