"""Gradients that die on their way back: told, with the layers that starve, and nothing is changed."""

import pytest
import torch
from guarded import noise, train
from torch import nn


def deep(activation, depth=20, std=None, is_residual=False):
    def make():
        layers = []
        for _ in range(depth):
            layer = nn.Linear(24, 24)
            if std is not None:
                nn.init.normal_(layer.weight, std=std)
            if activation is nn.ReLU:
                nn.init.kaiming_normal_(layer.weight)
            block = nn.Sequential(layer, activation())
            layers.append(Residual(block) if is_residual else block)
        model = nn.Sequential(*layers, nn.Linear(24, 2))

        def loss_at(step):
            inputs = noise(step, 32, 24)
            return nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())

        return model, torch.optim.SGD(model.parameters(), lr=0.02), loss_at

    return make


class Residual(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, inputs):
        return inputs + 0.3 * self.block(inputs)


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize(
    "task",
    [deep(nn.Sigmoid), deep(nn.Tanh, std=0.05)],
    ids=["sigmoid", "tanh with small weights"],
)
def test_starving_first_layers_are_named_with_a_cure_and_the_run_is_left_as_it_is(task, is_observed, bits):
    run = train(task, 120, is_observed=is_observed)
    assert {remedy for _, _, remedy in run.acted} == {"notify"}
    finding = next(act.finding for act in run.interventions if act.diagnosis == "vanishing_gradient")
    assert finding.parameters[0] in ("0.0.weight", "1.0.weight")
    assert "20.weight" not in finding.parameters
    assert "0.0.weight" in finding.message
    assert "initialisation" in finding.advice
    assert finding.value < finding.threshold
    plain = train(task, 120, is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(plain.model, plain.optimizer)


@pytest.mark.parametrize(
    "task",
    [deep(nn.ReLU), deep(nn.Tanh, is_residual=True), deep(nn.Sigmoid, depth=2)],
    ids=["rectifiers with He weights", "residual", "shallow sigmoid"],
)
def test_nets_whose_gradient_arrives_are_left_in_peace(task):
    run = train(task, 120)
    assert run.alarms == []
