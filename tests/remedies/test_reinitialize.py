"""reinitialize draws the rule's parameters afresh, makes the optimizer forget them, and drops the step."""

import pytest
import torch
from aim import aim_at
from guarded import noise
from torch import nn

from gradguard.contracts import REMEDIES, Unavailable
from gradguard.model.forward_inputs import ForwardInputs


Reinitialize = REMEDIES.get("reinitialize")


def raise_fault(what, error):
    raise error


def aimed(model=None, batch=None, step=5):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = ForwardInputs(model, raise_fault)
    batch = noise(0, 32, 4) if batch is None else batch
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    model(batch).square().mean().backward()
    target = aim_at(model, optimizer, step=step)
    target.inputs = inputs
    return target


def spreads(target):
    return [float(param.detach().std()) for param in target.params if param.ndim == 2]


def test_each_weight_gets_the_size_that_its_activation_asks_for():
    target = aimed()
    change = Reinitialize(scheme="he").apply(target, None, None)
    assert spreads(target) == pytest.approx([1.4142 / 2, 1.5925 / 8, 1.0 / 8], rel=0.15)
    assert all(param.unique().tolist() == [0.0] for param in target.params if param.ndim == 1)
    assert (change.after["parameters"], change.after["left_alone"]) == (6, 0)


def test_a_model_whose_order_is_not_known_gets_the_gain_of_its_commonest_activation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.last = nn.Linear(4, 256), nn.SiLU(), nn.Linear(256, 256)

        def forward(self, x):
            return self.last(self.act(self.first(x)))

    target = aimed(Net())
    Reinitialize(scheme="he").apply(target, None, None)
    assert spreads(target) == pytest.approx([1.6765 / 2, 1.6765 / 16], rel=0.1)


def test_the_optimizer_forgets_them_and_the_step_is_dropped():
    target = aimed()
    assert len(target.optimizer.state) == 6
    Reinitialize().apply(target, None, None)
    assert not target.optimizer.state
    assert (target.is_skipped, target.is_operated) == (True, True)
    weights = [param.detach().clone() for param in target.params]
    target.optimizer.step()
    assert all(torch.equal(param, weight) for param, weight in zip(target.params, weights, strict=True))


def test_a_rule_for_some_parameters_changes_these_only():
    target = aimed()
    before = [param.detach().clone() for param in target.params]
    Reinitialize().apply(target, None, [2, 3])
    assert [torch.equal(p, b) for p, b in zip(target.params, before, strict=True)] == [True] * 2 + [False] * 2 + [
        True
    ] * 2
    assert [param in target.optimizer.state for param in target.params] == [True] * 2 + [False] * 2 + [True] * 2


def test_lsuv_gives_every_layer_a_signal_of_unit_size():
    target = aimed(batch=1e4 * noise(0, 32, 4))
    Reinitialize(scheme="lsuv").apply(target, None, None)
    signal = 1e4 * noise(0, 32, 4)
    for module in target.model:
        signal = module(signal)
        if isinstance(module, nn.Linear):
            assert float(signal.detach().std(correction=0)) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("scheme", ["he", "xavier", "orthogonal", "lsuv"])
def test_the_same_step_and_seed_give_the_same_weights_and_the_global_generator_rests(scheme):
    results = []
    for seed in (1, 1, 2):
        target = aimed()
        before = torch.get_rng_state()
        Reinitialize(scheme=scheme, seed=seed).apply(target, None, None)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(target.params[0].detach().clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_shared_weights_are_drawn_once():
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    model[1].weight = model[0].weight
    target = aimed(model, torch.arange(50))
    change = Reinitialize(scheme="lsuv").apply(target, None, None)
    assert change.after["parameters"] == 1
    assert spreads(target) == pytest.approx([1.0], rel=0.2)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return x @ self.weight


def test_what_is_of_a_kind_of_its_own_is_left_alone_and_that_is_said():
    target = aimed(nn.Sequential(Own(), nn.Linear(4, 2)))
    change = Reinitialize().apply(target, None, None)
    assert (change.after["parameters"], change.after["left_alone"]) == (2, 1)
    target = aimed(nn.Sequential(Own()))
    with pytest.raises(Unavailable, match="belongs to a layer"):
        Reinitialize().apply(target, None, None)
    assert not target.is_operated


def test_lsuv_without_a_batch_is_unavailable_and_changes_nothing():
    target = aimed()
    before = [param.detach().clone() for param in target.params]
    for inputs in (None, ForwardInputs(target.model, raise_fault)):
        target.inputs = inputs
        with pytest.raises(Unavailable, match="needs a batch"):
            Reinitialize(scheme="lsuv").apply(target, None, None)
    assert all(torch.equal(param, weight) for param, weight in zip(target.params, before, strict=True))
    assert not target.is_operated


def test_lsuv_on_a_model_that_does_not_run_again_puts_everything_back():
    class Once(nn.Sequential):
        def forward(self, x):
            if not torch.is_grad_enabled():
                raise RuntimeError("only once")
            return super().forward(x)

    target = aimed(Once(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    with pytest.raises(Unavailable, match="only once"):
        Reinitialize(scheme="lsuv").apply(target, None, None)
    assert all(torch.equal(value, before[name]) for name, value in target.model.state_dict().items())
    assert len(target.optimizer.state) == 6


def test_when_training_stops_the_weights_stay():
    target = aimed()
    target.is_stopped = True
    with pytest.raises(Unavailable, match="training stops"):
        Reinitialize().apply(target, None, None)
