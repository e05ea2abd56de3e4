"""Damage is told from what is meant: NaN and infinity anywhere, but for buffers that were born infinite."""

import math

import pytest
import torch
from torch import nn

from gradguard.model.finite_check import FiniteCheck


class Masked(nn.Module):
    """A layer with a mask of minus infinity, a table of counts, and statistics."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(2))


@pytest.fixture
def model():
    return Masked()


@pytest.fixture
def check(model):
    check = FiniteCheck(model, more=dict)
    assert check.bad() == ()
    return check


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["layer.weight", "layer.bias", "mean"])
def test_a_bad_entry_is_named(model, check, name, bad):
    tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}[name]
    tensor.data.view(-1)[-1] = bad
    assert check.bad() == (name,)
    tensor.data.zero_()
    assert check.bad() == ()


def test_parameters_come_first(model, check):
    model.mean[0] = math.nan
    model.layer.bias.data[0] = math.nan
    assert check.bad() == ("layer.bias", "mean")


def test_a_mask_may_be_infinite_but_not_turn_to_nan(model, check):
    model.mask[1, 0] = -math.inf
    assert check.bad() == ()
    model.mask[0, 0] = math.nan
    assert check.bad() == ("mask",)


def test_a_buffer_that_was_nan_when_it_was_first_seen_is_meant_to_be():
    model = Masked()
    model.mean.fill_(math.nan)
    assert FiniteCheck(model, more=dict).bad() == ()


def test_a_parameter_that_is_bad_when_it_is_first_seen_is_bad():
    model = Masked()
    model.layer.weight.data[0, 0] = math.inf
    assert FiniteCheck(model, more=dict).bad() == ("layer.weight",)


def test_a_buffer_that_comes_later_is_first_seen_then(model, check):
    model.register_buffer("late", torch.full((2,), -math.inf))
    assert check.bad() == ()
    model.late[0] = math.nan
    assert check.bad() == ("late",)


def test_further_tensors_and_cleaned_names_are_told_once():
    model = Masked()
    tied = model.layer.weight
    check = FiniteCheck(model, more=lambda: {"foreign": foreign, "tied": tied}, clean=str.upper)
    foreign = torch.zeros(1)
    assert check.bad() == ()
    foreign[0] = math.nan
    tied.data[0, 0] = math.nan
    model.mean[0] = math.nan
    assert check.bad() == ("foreign", "tied", "MEAN")
