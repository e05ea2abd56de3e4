"""What follows what is said only where the order of modules makes it sure."""

import pytest
from torch import nn

from gradguard.model.module_chain import activations_behind, chains, neighbours


def names(model):
    return [[link.name for link in chain] for chain in chains(model)]


def test_sequentials_within_sequentials_are_one_chain():
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert names(nn.Sequential(block, nn.Dropout(), nn.Sequential(nn.Linear(2, 1)))) == [["0.0", "0.1", "1", "2.0"]]


def test_a_chain_within_a_module_of_ones_own_is_one_by_itself():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
            self.head = nn.Linear(2, 1)

    assert names(Net()) == [["body.0", "body.1"]]
    assert names(nn.Sequential(Net(), nn.ReLU())) == [["0", "1"], ["0.body.0", "0.body.1"]]


def test_a_module_that_is_used_twice_makes_no_chain():
    act = nn.ReLU()
    assert names(nn.Sequential(nn.Linear(2, 2), act, nn.Linear(2, 2), act)) == []
    assert names(nn.ModuleList([nn.Sequential(act), nn.Sequential(act)])) == []


def test_a_sequential_of_a_kind_of_its_own_is_not_taken_for_one():
    class Backwards(nn.Sequential):
        def forward(self, x):
            for module in reversed(self):
                x = module(x)
            return x

    assert names(Backwards(nn.Linear(2, 2), nn.ReLU())) == []


def test_the_activation_behind_a_layer_may_come_after_a_norm_and_dropout():
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 4), nn.Tanh()
    )
    assert activations_behind(model) == {"0": "gelu", "4": None, "5": "tanh"}


def test_the_layers_around_a_place():
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(), nn.Dropout(), nn.Identity(), nn.Linear(8, 3)
    )
    around = neighbours(model, "3")
    assert (around.before.name, around.norm.name, around.after.name, around.copies) == ("0", "1", "6", 1)


def test_behind_a_convolution_each_unit_may_have_several_inputs():
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
    )
    first, second = neighbours(model, "1"), neighbours(model, "4")
    assert (first.before.name, first.after.name, first.copies) == ("0", "3", 1)
    assert (second.before.name, second.after.name, second.copies) == ("3", "6", 9)


def test_the_last_activation_feeds_no_layer():
    around = neighbours(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), "1")
    assert (around.before.name, around.after) == ("0", None)


class Own(nn.Module):
    """Whatever it does."""


@pytest.mark.parametrize(
    ("model", "place", "reason"),
    [
        (nn.ModuleDict({"act": nn.ReLU()}), "act", "not in a Sequential"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), "0", "no layer comes before"),
        (
            nn.Sequential(nn.Linear(2, 2), Own(), nn.ReLU(), nn.Linear(2, 2)),
            "2",
            "'1' lies between '2' and the layer that f",
        ),
        (
            nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Own(), nn.Linear(2, 2)),
            "1",
            "'2' lies between '1' and the layer that it",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sigmoid(), nn.Linear(2, 2)), "1", "'2' lies between"),
        (nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), "1", "does not take the 4 units"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)), "1", "does not take the 4 units"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 3)), "1", "grouped or transposed"),
        (nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), "1", "grouped or transposed"),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4)), "1", "does not take the 4 units"),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 4, 3)), "1", "does not take the 4 units"),
    ],
)
def test_where_it_is_not_sure_the_reason_is_given(model, place, reason):
    assert reason in neighbours(model, place)
