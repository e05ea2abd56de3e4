"""A revived unit has fresh weights and no effect yet; what the model computes stays as it was."""

import pytest
import torch
from guarded import noise
from torch import nn

from gradguard.model.module_chain import neighbours
from gradguard.surgery.initialization import seeded
from gradguard.surgery.unit_revival import revive


def kill(layer, units):
    with torch.no_grad():
        layer.bias[units] = -1e3


def train(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def dense():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), noise(0, 32, 4)


def convolution():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3)
    )
    return model, noise(0, 16, 1, 8, 8)


def dead_among(model, batch, place):
    seen = model[: place + 1](batch)
    return (seen.transpose(0, 1).flatten(1) == 0).all(1).nonzero().flatten().tolist()


@pytest.mark.parametrize("make", [dense, convolution])
def test_the_model_computes_what_it_did_and_the_units_live(make):
    torch.manual_seed(0)
    model, batch = make()
    place = next(index for index, module in enumerate(model) if isinstance(module, nn.ReLU))
    kill(model[place - 1], [1, 5])
    dead = dead_among(model, batch, place)
    assert {1, 5} <= set(dead)
    model.eval()
    before = model(batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    revive(neighbours(model, str(place)), "relu", dead, optimizer, seeded(0, 0))
    torch.testing.assert_close(model(batch), before)
    model.train()
    assert dead_among(model, batch, place) == []
    train(model, optimizer, [batch] * 3)
    last = model[-1].weight.detach().reshape(3, 8, -1)
    assert (last[:, dead] != 0).any()


def test_only_what_belongs_to_the_units_changes():
    torch.manual_seed(0)
    model, _ = dense()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    changed = revive(neighbours(model, "1"), "relu", [2, 3], torch.optim.SGD(model.parameters()), seeded(0, 0))
    assert changed == ["0.weight", "0.bias", "2.weight"]
    others = [0, 1, 4, 5, 6, 7]
    after = model.state_dict()
    assert torch.equal(after["0.weight"][others], before["0.weight"][others])
    assert torch.equal(after["0.bias"][others], before["0.bias"][others])
    assert torch.equal(after["2.weight"][:, others], before["2.weight"][:, others])
    assert torch.equal(after["2.bias"], before["2.bias"])
    assert after["2.weight"][:, [2, 3]].unique().tolist() == [0.0]
    assert after["0.bias"][[2, 3]].tolist() == [0.0, 0.0]
    assert not torch.equal(after["0.weight"][[2, 3]], before["0.weight"][[2, 3]])


def test_incoming_weights_have_the_size_of_he_s_initialisation():
    model = nn.Sequential(nn.Linear(400, 50), nn.ReLU(), nn.Linear(50, 1))
    revive(neighbours(model, "1"), "relu", list(range(40)), torch.optim.SGD(model.parameters()), seeded(0, 0))
    assert float(model[0].weight[:40].detach().std()) == pytest.approx((2 / 400) ** 0.5, rel=0.05)


def test_the_optimizer_forgets_these_entries_only():
    torch.manual_seed(0)
    model, batch = dense()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, [batch] * 4)
    before = {param: {k: v.clone() for k, v in state.items()} for param, state in optimizer.state.items()}
    revive(neighbours(model, "1"), "relu", [2], optimizer, seeded(0, 0))
    incoming, outgoing = optimizer.state[model[0].weight], optimizer.state[model[2].weight]
    assert incoming["exp_avg"][2].tolist() == [0.0] * 4
    assert outgoing["exp_avg"][:, 2].tolist() == [0.0] * 3
    others = [0, 1, 3, 4, 5, 6, 7]
    assert torch.equal(incoming["exp_avg"][others], before[model[0].weight]["exp_avg"][others])
    assert torch.equal(outgoing["exp_avg_sq"][:, others], before[model[2].weight]["exp_avg_sq"][:, others])
    assert float(incoming["step"]) == 4.0


def test_a_layer_that_is_dead_as_a_whole_learns_again():
    torch.manual_seed(0)
    model, batch = dense()
    kill(model[0], list(range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    revive(neighbours(model, "1"), "relu", list(range(8)), optimizer, seeded(0, 0))
    before = model[0].weight.detach().clone()
    train(model, optimizer, [batch] * 2)
    assert not torch.equal(model[0].weight, before)


def test_batch_normalisation_in_between_begins_anew_for_the_unit():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        model[1].weight.fill_(9.0)
        model[1].bias.fill_(-9.0)
        model[1].running_mean.fill_(9.0)
        model[1].running_var.fill_(9.0)
    revive(neighbours(model, "2"), "relu", [1], torch.optim.SGD(model.parameters()), seeded(0, 0))
    norm = model[1]
    assert [norm.weight.tolist(), norm.bias.tolist()] == [[9.0, 1.0, 9.0], [-9.0, 0.0, -9.0]]
    assert [norm.running_mean.tolist(), norm.running_var.tolist()] == [[9.0, 0.0, 9.0], [9.0, 1.0, 9.0]]
