"""revive_units takes the dead units from the probe and says why it leaves others alone."""

import pytest
import torch
from aim import aim_at
from guarded import noise
from probing import num_hooks
from torch import nn

from gradguard.contracts import REMEDIES, Unavailable
from gradguard.probes.activation_probe import ActivationProbe


ReviveUnits = REMEDIES.get("revive_units")


def fail(what, error):
    raise error


def aimed(model, dead, batch=None):
    """Return a target whose model has these units dead, {layer: units}, and was probed."""
    with torch.no_grad():
        for layer, units in dead.items():
            model.get_submodule(layer).bias[units] = -1e3
    batch = noise(0, 256, 4) if batch is None else batch
    probe = ActivationProbe(model, fail, keeps_dead=True)
    probe.begin()
    model(batch).square().mean().backward()
    target = aim_at(model, torch.optim.Adam(model.parameters(), lr=0.01))
    target.stats.activations = probe.launch()()
    assert num_hooks(model) == 0
    return target


def wide(act=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), act(), nn.Linear(16, 16), act(), nn.Linear(16, 2))


def dead_units(target, place):
    (index,) = [i for i, name in enumerate(target.stats.activations.names) if name == place]
    return target.stats.activations.dead_units[index].tolist()


@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU])
def test_dead_units_of_every_layer_begin_anew(act):
    target = aimed(wide(act), {"0": [3, 7], "2": [5]})
    assert dead_units(target, "1") == [3, 7] if act is nn.GELU else {3, 7} <= set(dead_units(target, "1"))
    change = ReviveUnits().apply(target, None, None)
    alive = (target.model[1](target.model[0](noise(1, 64, 4))) != 0).any(0)
    assert bool(alive.all())
    assert target.model[2].weight[:, dead_units(target, "1")].unique().tolist() == [0.0] or 5 in dead_units(target, "3")
    assert change.after["layers"] == 2
    assert change.before["dead_units"] == len(dead_units(target, "1")) + len(dead_units(target, "3"))
    assert (target.is_skipped, target.is_operated) == (True, True)


def test_two_dead_layers_in_a_row_learn_again():
    target = aimed(wide(), {"0": list(range(16)), "2": list(range(16))})
    ReviveUnits().apply(target, None, None)
    model, before = target.model, [param.detach().clone() for param in target.params]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        (model(noise(step, 64, 4)) - 1.0).square().mean().backward()
        optimizer.step()
    assert not any(torch.equal(p, b) for p, b in zip(target.params, before, strict=True))


def test_of_a_wide_layer_the_units_that_were_sampled_are_revived():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 2))
    target = aimed(model, {"0": [0, 3, 6, 299]})
    found = dead_units(target, "1")
    assert {0, 3, 6} <= set(found)  # every third of 300 is looked at
    assert all(unit % 3 == 0 for unit in found)
    ReviveUnits().apply(target, None, None)
    assert float(model[0].bias[299].detach()) == -1e3


def test_a_rule_for_some_parameters_revives_only_between_these():
    target = aimed(wide(), {"0": [3], "2": [5]})
    change = ReviveUnits().apply(target, None, [2, 3, 4, 5])
    assert (change.after["layers"], change.after["layers_left_alone"]) == (1, 1)
    assert float(target.model[0].bias[3].detach()) == -1e3
    assert "not all among the parameters" in change.summary


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


@pytest.mark.parametrize(
    ("model", "dead", "reason"),
    [
        (Own(), {"first": [3]}, "not in a Sequential"),
        (nn.Sequential(nn.Linear(4, 16), nn.ReLU()), {"0": [3]}, "no layer follows '1'"),
        (wide(), {}, "no dead unit"),
    ],
    ids=["own", "last", "none"],
)
def test_where_it_is_not_sure_nothing_is_changed(model, dead, reason):
    torch.manual_seed(0)
    if not dead:
        nn.init.constant_(model[0].bias, 50.0)
        nn.init.constant_(model[2].bias, 500.0)
    target = aimed(model, dead)
    before = [param.detach().clone() for param in target.params]
    with pytest.raises(Unavailable, match=reason):
        ReviveUnits().apply(target, None, None)
    assert all(torch.equal(param, value) for param, value in zip(target.params, before, strict=True))
    assert not target.is_operated


def test_without_a_probe_at_this_step_it_is_unavailable():
    target = aimed(wide(), {"0": [3]})
    target.stats.activations = None
    with pytest.raises(Unavailable, match="at the step of a probe"):
        ReviveUnits().apply(target, None, None)


def test_when_training_stops_the_units_stay_dead():
    target = aimed(wide(), {"0": [3]})
    target.is_stopped = True
    with pytest.raises(Unavailable, match="training stops"):
        ReviveUnits().apply(target, None, None)
