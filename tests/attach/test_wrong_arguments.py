"""What cannot be guarded is refused in words that say what to do; nothing is changed."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import gradguard
from gradguard.guard import STATE_VERSION


def linear():
    return nn.Linear(3, 2)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def frozen():
    model = linear().requires_grad_(False)
    return model, sgd(model)


def swapped():
    model = linear()
    return sgd(model), model


def without_parameters():
    return nn.ReLU(), sgd(linear())


def of_another_model():
    return linear(), sgd(linear())


def built_before_the_copy():
    model = linear()
    optimizer = sgd(model)
    return copy.deepcopy(model), optimizer


def a_scheduler():
    model = linear()
    return model, torch.optim.lr_scheduler.StepLR(sgd(model), 1)


def parameters_instead_of_the_model():
    model = linear()
    return list(model.parameters()), sgd(model)


class Wrapper:
    """What training frameworks hand out in place of the optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def wrapped():
    model = linear()
    return model, Wrapper(sgd(model))


def nothing():
    return linear(), None


CASES = [
    (without_parameters, "no parameters"),
    (frozen, "frozen.*requires_grad"),
    (of_another_model, "none of the optimizer's 2 parameters belongs to the model.*model.parameters"),
    (built_before_the_copy, "belongs to the model"),
    (swapped, "expects a torch.nn.Module first, got SGD"),
    (parameters_instead_of_the_model, "torch.nn.Module first, got list"),
    (a_scheduler, "Optimizer, got StepLR.*pass that one"),
    (wrapped, "Optimizer, got Wrapper.*inner optimizer.*pass that one"),
    (nothing, "Optimizer, got NoneType"),
]


@pytest.mark.parametrize(("case", "message"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_it_is_refused_with_a_clear_message_and_nothing_is_changed(case, message, tmp_path):
    model, optimizer = case()
    with pytest.raises(gradguard.AttachError, match=message) as caught:
        gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    assert isinstance(caught.value, ValueError)
    assert list(tmp_path.iterdir()) == []
    real = optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", None)
    if real is not None:
        assert not real._optimizer_step_pre_hooks
        assert not real._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (torch.ones(3), r"shape \(3,\).*mean"),
        (torch.ones(0), r"shape \(0,\)"),
        ("0.5", "a tensor or a number, got str"),
        (None, "got NoneType"),
        ([0.5], "got list"),
    ],
)
def test_a_loss_that_is_no_number_is_refused_and_does_not_count(loss, message):
    model = linear()
    optimizer = sgd(model)
    guard = gradguard.attach(model, optimizer)
    with pytest.raises(gradguard.UsageError, match=message):
        guard.observe(loss)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not guard.last.skipped


@pytest.mark.parametrize(
    "loss", [1, 0.5, True, np.float32(0.5), torch.tensor(0.5), torch.tensor([[0.5]]), torch.tensor(2)]
)
def test_any_one_number_is_a_loss(loss):
    model = linear()
    optimizer = sgd(model)
    guard = gradguard.attach(model, optimizer)
    guard.observe(loss)
    optimizer.step()
    assert guard.step == 1
    assert not guard.last.skipped


@pytest.mark.parametrize(
    "state", [{}, {"version": 99}, {"version": STATE_VERSION, "parameters": ["other.weight", "other.bias"]}]
)
def test_a_foreign_state_is_refused_and_nothing_is_changed(state):
    model = linear()
    optimizer = sgd(model)
    guard = gradguard.attach(model, optimizer)
    before = guard.state_dict()
    with pytest.raises(gradguard.UsageError, match=r"version|parameters"):
        guard.load_state_dict(state)
    assert guard.state_dict()["step"] == before["step"]
    assert [record.event for record in guard.records] == ["attached"]
