"""Every layer gives a signal of standard deviation 1, as the published loop over forward passes finds it too."""

import copy

import pytest
import torch
from guarded import noise
from torch import nn

from gradguard.surgery.initialization import redraw, seeded
from gradguard.surgery.lsuv import scale_to_unit_variance


def make(act=nn.ReLU, depth=6):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(16, 16), act()]
    model = nn.Sequential(*layers, nn.Linear(16, 3))
    for layer in linear(model):
        redraw(layer.weight, "lsuv", 1.0, seeded(0, 0))
        nn.init.zeros_(layer.bias)
    return model


def linear(model):
    return [module for module in model if isinstance(module, (nn.Linear, nn.Conv2d))]


def outputs(model, batch):
    seen = []
    for module in model:
        batch = module(batch)
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            seen.append(float(batch.detach().std(correction=0)))
    return seen


def published(model, batch):
    """Algorithm 1 of Mishkin and Matas: layer by layer, a forward pass and a division, until the variance is 1."""
    for index in range(len(linear(model))):
        while abs(outputs(model, batch)[index] - 1.0) > 1e-6:
            with torch.no_grad():
                linear(model)[index].weight /= outputs(model, batch)[index]


@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU])
def test_every_layer_gives_a_signal_of_unit_size_in_one_pass(act):
    model, batch = make(act), 5.0 * noise(0, 64, 16)
    oracle = copy.deepcopy(model)
    factors = scale_to_unit_variance(linear(model), lambda: model(batch))
    assert sorted(factors) == list(range(7))
    assert outputs(model, batch) == pytest.approx([1.0] * 7, abs=1e-4)
    published(oracle, batch)
    for ours, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_convolutions_too():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 3, bias=False))
    batch = noise(0, 8, 1, 8, 8)
    scale_to_unit_variance(linear(model), lambda: model(batch))
    assert outputs(model, batch) == pytest.approx([1.0, 1.0], abs=1e-4)


def test_a_layer_without_a_signal_or_without_a_call_is_left_alone():
    model, batch = make(), torch.zeros(4, 16)
    before = copy.deepcopy(model.state_dict())
    idle = nn.Linear(2, 2)
    assert scale_to_unit_variance([*linear(model), idle], lambda: model(batch)) == {}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_layer_that_is_called_twice_is_scaled_once():
    layer, batch = nn.Linear(16, 16, bias=False), noise(0, 32, 16)
    scale_to_unit_variance([layer], lambda: layer(layer(batch)))
    assert float(layer(batch).detach().std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_hooks_are_gone_even_if_the_model_fails():
    model = make()

    def fail():
        model(torch.zeros(4, 15))

    with pytest.raises(RuntimeError):
        scale_to_unit_variance(linear(model), fail)
    assert not any(module._forward_hooks for module in model)
