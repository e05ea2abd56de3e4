"""The model's last batch is kept without a copy, and running it again leaves no trace."""

import random

import numpy as np
import pytest
import torch
from conftest import flatten
from guarded import noise
from torch import nn

from gradguard.model.forward_inputs import ForwardInputs
from gradguard.model.rerun import rerun
from gradguard.snapshots.random_state import random_state


SEEN = []  # where a look cannot undo it


@pytest.fixture(autouse=True)
def unseen():
    SEEN.clear()


class Counting(nn.Module):
    """Counts its calls in a buffer and in attributes, draws all kinds of random numbers, and takes a keyword."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("unset", None)
        self.num_seen, self.sizes, self.generator = 0, [], torch.Generator()

    def forward(self, x, *, factor=1.0):
        self.calls += 1
        self.calls = self.calls.clone()
        self.num_seen += 1
        self.sizes.append(len(x))
        self.latest = torch.rand((), generator=self.generator)
        random.random(), np.random.rand()
        SEEN.append((x, factor))
        return self.layer(x) * factor


def raise_fault(what, error):
    raise error


def test_it_runs_the_last_training_batch_again_and_changes_nothing(bits):
    model = Counting()
    inputs = ForwardInputs(model, raise_fault, keeps_random=False)
    assert inputs.last is None
    batch = noise(0, 8, 4)
    model(noise(1, 8, 4))
    model(batch, factor=3.0)
    model.eval()
    model(noise(2, 8, 4))
    model.train()
    with torch.no_grad():
        model(noise(3, 8, 4))
    inputs.forget()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    attributes = {**vars(model), "sizes": list(model.sizes)}
    before = random_state()
    generated = model.generator.get_state()
    assert rerun(model, inputs.last)
    assert SEEN[-1][0] is batch
    assert SEEN[-1][1] == 3.0
    assert dict(flatten(random_state())) == dict(flatten(before))
    assert torch.equal(model.generator.get_state(), generated)
    assert vars(model) == attributes
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


def test_the_run_takes_no_gradient_and_is_not_taken_for_a_batch():
    model = Counting()
    inputs = ForwardInputs(model, raise_fault, keeps_random=False)
    batch = noise(0, 8, 4)
    model(batch)
    rerun(model, inputs.last)
    rerun(model, inputs.last)
    assert [given is batch for given, _ in SEEN] == [True] * 3
    assert all(param.grad is None for param in model.parameters())


def test_buffers_are_put_back_when_the_model_fails():
    model = Counting()
    inputs = ForwardInputs(model, raise_fault, keeps_random=False)
    model(noise(0, 8, 4))
    calls = model.calls
    model.layer = nn.Linear(5, 5)
    with pytest.raises(RuntimeError):
        rerun(model, inputs.last)
    assert model.calls is calls
    assert float(calls) == 1.0


def test_it_lets_go_of_the_model_and_of_the_batch():
    model = Counting()
    inputs = ForwardInputs(model, raise_fault, keeps_random=False)
    model(noise(0, 8, 4))
    inputs.close()
    assert not model._forward_pre_hooks
    assert inputs.last is None
