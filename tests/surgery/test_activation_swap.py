"""Which activations may be exchanged, and what stands there afterwards."""

import pytest
import torch
from torch import nn

from gradguard.surgery.activation_swap import MAKERS, find, replace


class Exp(nn.Module):
    def forward(self, x):
        return x.exp()


class Turned(nn.Module):
    """Changes the places of entries, which no activation does."""

    def forward(self, x):
        return x.flip(-1)


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(-1, keepdim=True)


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Picky(nn.Module):
    def forward(self, x):
        return x["inputs"]


def net(*between, end=()):
    return nn.Sequential(nn.Linear(4, 4), *between, nn.Linear(4, 4), *end)


def test_hidden_and_last_ones_are_told_apart():
    model = net(nn.Sigmoid(), nn.Dropout(), end=(nn.Sigmoid(),))
    assert find(model, frozenset({"sigmoid"}), "hidden") == {"1": "sigmoid"}
    assert find(model, frozenset({"sigmoid"}), "last") == {"4": "sigmoid"}
    assert find(model, frozenset({"tanh"}), "hidden") == {}


def test_an_activation_before_the_first_layer_is_no_hidden_one():
    assert find(nn.Sequential(nn.Tanh(), net(nn.Tanh())), frozenset({"tanh"}), "hidden") == {"1.1": "tanh"}


def test_the_end_of_a_chain_is_the_last_only_where_the_model_ends():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

    assert find(Net(), frozenset({"relu"}), "last") == {}


@pytest.mark.parametrize("module", [Exp()])
def test_a_function_of_ones_own_is_found_if_it_does_the_same_to_every_entry(module):
    assert find(net(module), frozenset({"other"}), "hidden") == {"1": "other"}


@pytest.mark.parametrize(
    "module", [Turned(), Centred(), Noisy(), Picky(), nn.Flatten(), nn.Identity(), nn.LayerNorm(4)]
)
def test_other_modules_are_not(module):
    model, random = net(module), torch.get_rng_state()
    assert find(model, frozenset({"other"}), "hidden") == {}
    assert torch.equal(torch.get_rng_state(), random)


def test_one_with_a_hook_of_the_user_s_is_left_alone():
    model = net(nn.Tanh())
    model[1].register_forward_hook(lambda *args: None)
    assert find(model, frozenset({"tanh"}), "hidden") == {}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_new_module_stands_in_its_parent_and_computes_what_it_is_called(kind):
    model = nn.Sequential(net(nn.Sigmoid())).eval()
    replace(model, {"0.1": kind})
    fresh = model[0][1]
    assert fresh.training is False
    assert [name for name, _ in model.named_modules()] == ["", "0", "0.0", "0.1", "0.2"]
    values = torch.linspace(-2, 2, 9)
    expected = values if kind == "identity" else getattr(torch.nn.functional, kind)(values)
    assert torch.equal(fresh(values), expected)


def test_a_place_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError):
        replace(net(nn.Tanh()), {"7": "relu"})
