"""replace_activation exchanges modules and nothing else, and remembers what it exchanged."""

import pytest
import torch
from aim import aim_at
from guarded import noise
from torch import nn

from gradguard.contracts import REMEDIES, Unavailable


ReplaceActivation = REMEDIES.get("replace_activation")


def aimed(*modules):
    torch.manual_seed(0)
    model = nn.Sequential(*modules)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(noise(0, 8, 4)).square().mean().backward()
    return aim_at(model, optimizer)


def kinds(target):
    return [type(module).__name__ for module in target.model]


def test_a_softmax_between_layers_becomes_a_relu_and_the_one_at_the_end_stays():
    target = aimed(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3), nn.Softmax(1))
    weights = {name: value.clone() for name, value in target.model.state_dict().items()}
    change = ReplaceActivation().apply(target, None, None)
    assert kinds(target) == ["Linear", "ReLU", "Linear", "ReLU", "Linear", "Softmax"]
    assert target.replaced == {"1": "relu", "3": "relu"}
    assert change.before == {"kinds": "sigmoid, softmax"}
    assert change.after == {"kind": "relu", "places": "1, 3", "number": 2}
    assert "change the model's code" in change.summary
    assert all(torch.equal(value, weights[name]) for name, value in target.model.state_dict().items())
    assert (target.is_skipped, target.is_operated) == (True, True)


def test_a_relu_behind_the_last_layer_is_taken_away():
    target = aimed(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU())
    ReplaceActivation(kinds=("relu",), to="identity", where="last").apply(target, None, None)
    assert kinds(target) == ["Linear", "ReLU", "Linear", "Identity"]


def test_what_was_exchanged_before_stays_in_memory():
    target = aimed(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3), nn.ReLU())
    ReplaceActivation(kinds=("tanh",), to="elu").apply(target, None, None)
    target.begin()
    ReplaceActivation(kinds=("relu",), to="identity", where="last").apply(target, None, None)
    assert target.replaced == {"1": "elu", "3": "identity"}


def test_where_there_is_none_of_the_kind_it_is_unavailable():
    target = aimed(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(Unavailable, match="no hidden activation module of kind tanh"):
        ReplaceActivation(kinds=("tanh",)).apply(target, None, None)
    assert not target.is_operated


def test_when_training_stops_the_modules_stay():
    target = aimed(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3))
    target.is_stopped = True
    with pytest.raises(Unavailable, match="training stops"):
        ReplaceActivation().apply(target, None, None)
