"""A small training with whichever optimizer a test asks for, guarded or not."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import gradguard


OPTIONS = {
    "SGD": [{"lr": 0.05}, {"lr": 0.05, "momentum": 0.9}, {"lr": 0.05, "momentum": 0.9, "nesterov": True}],
    "LBFGS": [{"lr": 0.1, "max_iter": 3}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True}],
    "Adam": [{}, {"amsgrad": True}],
}


@dataclass(frozen=True)
class Variant:
    """An optimizer of torch.optim with options; `str` is the id of its tests."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self):
        words = [
            key if value is True else f"{key}={value}" for key, value in self.options.items() if value is not False
        ]
        return " ".join([self.name, *words, *(["plain"] if self.options.get("foreach") is False else [])])

    @property
    def takes_weight_decay(self):
        return "weight_decay" in inspect.signature(getattr(torch.optim, self.name)).parameters

    @property
    def needs_closure(self):
        return self.name == "LBFGS"

    def build(self, **more):
        """Return a fresh model and its optimizer, always the same."""
        torch.manual_seed(0)
        model = Table() if self.name == "SparseAdam" else Net()
        params = [p for p in model.parameters() if p.ndim == 2] if self.name == "Muon" else model.parameters()
        return model, getattr(torch.optim, self.name)(params, **self.options, **more)


class Net(nn.Module):
    """Two layers around a BatchNorm, so that there are buffers to spoil."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, inputs):
        return self.body(inputs)


class Table(nn.Module):
    """An embedding with sparse gradients; each batch reads other rows, some of them twice."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(12, 4, sparse=True)

    def forward(self, inputs):
        index = inputs.nan_to_num(0, 0, 0).mul(10).long().sum(1).abs() % 12
        return (self.rows(index) * inputs).sum(1, keepdim=True)


def every_variant():
    for name, optimizer in vars(torch.optim).items():
        if not inspect.isclass(optimizer) or not issubclass(optimizer, torch.optim.Optimizer) or name == "Optimizer":
            continue
        accepted = inspect.signature(optimizer).parameters
        for options in OPTIONS.get(name, [{}]):
            if "foreach" not in accepted:
                yield Variant(name, options)
                continue
            yield Variant(name, {**options, "foreach": False})
            yield Variant(name, {**options, "foreach": True})
            if "fused" in accepted:
                yield Variant(name, {**options, "fused": True})


@pytest.fixture(params=list(every_variant()), ids=str)
def variant(request):
    """Every optimizer of torch.optim, plain, foreach and fused where torch has it."""
    return request.param


@pytest.fixture
def make_net():
    """Function that returns the model with a BatchNorm, always the same."""

    def make():
        torch.manual_seed(0)
        return Net()

    return make


def make_batch(seed):
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def batches():
    """Eight healthy batches."""
    return [make_batch(seed) for seed in range(8)]


@pytest.fixture
def loss_of():
    """Function (model, inputs) -> loss; a NaN or an infinity in the inputs makes it NaN."""
    return lambda model, inputs: (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()


@pytest.fixture
def train(loss_of):
    """Function that trains on batches in turn and returns the guard, None when it is not guarded."""

    def run(model, optimizer, batches, *, is_guarded=True, is_closure=False, **options):
        guard = gradguard.attach(model, optimizer, **options) if is_guarded else None
        for inputs in batches:

            def evaluate(inputs=inputs):
                optimizer.zero_grad()
                loss = loss_of(model, inputs)
                loss.backward()
                return loss

            if is_closure:
                optimizer.step(evaluate)
            else:
                loss = evaluate()
                if guard is not None:
                    guard.observe(loss)
                optimizer.step()
        return guard

    return run
