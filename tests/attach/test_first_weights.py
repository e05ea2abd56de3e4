"""How the units of each weight differ is read where the run starts: at attach, after loading, with new parameters."""

import pytest
import torch
from torch import nn

import gradguard
from gradguard.policy.schema import Policy


POLICY = Policy.model_validate({"rules": [{"when": "bad_initialization", "do": "notify"}], "sinks": []})


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).square().mean().backward()
    optimizer.step()


def net(value=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    if value is not None:
        for layer in (model[0], model[2]):
            nn.init.constant_(layer.weight, value)
    return model


@pytest.mark.parametrize(("value", "count"), [(None, 0), (0.01, 2), (0.0, 2)], ids=["random", "constant", "zero"])
def test_weights_that_are_all_alike_are_found_at_the_first_step(value, count):
    model = net(value)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradguard.attach(model, optimizer, POLICY) as guard:
        step(model, optimizer)
        assert [len(finding.parameters) for finding in guard.last.findings] == ([count] if count else [])
        step(model, optimizer)
        assert guard.last.findings == ()


def test_weights_that_were_loaded_after_attaching_count():
    model = net(0.01)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradguard.attach(model, optimizer, POLICY) as guard:
        model.load_state_dict(net().state_dict())
        step(model, optimizer)
        assert guard.last.findings == ()


def test_new_parameters_are_looked_at():
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    with gradguard.attach(model, optimizer, POLICY) as guard:
        step(model, optimizer)
        nn.init.constant_(model[2].weight, 0.5)
        optimizer.add_param_group({"params": list(model[2].parameters())})
        step(model, optimizer)
        (finding,) = guard.last.findings
        assert finding.parameters == ("2.weight",)
