"""damp_optimizer_state takes momentum out; a full reset comes with a learning rate that re-warms."""

import pytest
import torch
from aim import aim_at
from torch import nn

from gradguard.contracts import REMEDIES, Unavailable


DampOptimizerState, ScaleLR = REMEDIES.get("damp_optimizer_state"), REMEDIES.get("scale_lr")


def trained(make, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = make(model)
    for _ in range(steps + 1):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        if _ < steps:
            optimizer.step()
    return aim_at(model, optimizer, step=steps)


def adam(model):
    return torch.optim.Adam(
        [{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1, betas=(0.9, 0.9)
    )


def state_of(target, row):
    return target.optimizer.state[target.params[row]]


def test_the_moments_of_the_rule_s_parameters_are_damped():
    target = trained(adam)
    before = [state_of(target, row)["exp_avg"].clone() for row in range(4)]
    change = DampOptimizerState(factor=0.5).apply(target, None, [0, 3])
    for row, moment in enumerate(before):
        assert torch.equal(state_of(target, row)["exp_avg"], moment * (0.5 if row in (0, 3) else 1.0))
    assert (change.after["factor"], change.after["parameters"]) == (0.5, 2)
    assert target.effects == {}


def test_a_reset_forgets_all_of_it_and_the_learning_rate_re_warms():
    target = trained(adam)
    change = DampOptimizerState(reset=True).apply(target, None, None)
    assert not target.optimizer.state
    effect = target.effects["scale_lr"]
    assert [effect.factor(0, 3 + t) for t in (0, 25, 50)] == pytest.approx([0.01, 0.1, 1.0])  # 5/(1 - 0.9) steps
    assert (change.after["rewarm_steps"], change.before["parameters_with_state"]) == (50, 4)


@pytest.mark.parametrize(("asked", "taken"), [(0, 50), (10, 50), (80, 80)])
def test_a_re_warm_is_never_shorter_than_the_memory_of_the_second_moment_asks(asked, taken):
    target = trained(adam)
    change = DampOptimizerState(reset=True, rewarm_steps=asked).apply(target, None, None)
    assert change.after["rewarm_steps"] == taken


def test_a_reset_for_some_parameters_re_warms_their_group_only():
    target = trained(adam)
    DampOptimizerState(reset=True).apply(target, None, [2])
    assert [target.params[row] in target.optimizer.state for row in range(4)] == [True, True, False, True]
    effect = target.effects["scale_lr"]
    assert (effect.factor(0, 3), effect.factor(1, 3)) == (1.0, 0.01)


@pytest.mark.parametrize("is_cut_first", [True, False])
def test_a_re_warm_and_a_cut_of_the_learning_rate_multiply_and_are_taken_off_together(is_cut_first):
    """Two effects on one option would undo each other."""
    target = trained(adam)
    remedies = [ScaleLR(factor=0.5), DampOptimizerState(reset=True)]
    for remedy in remedies if is_cut_first else remedies[::-1]:
        remedy.apply(target, None, None)
    (effect,) = target.effects.values()
    effect.before_step(target, 3)
    assert target.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 * 0.01)
    effect.take_off(target)
    assert target.optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("make", [lambda m: torch.optim.SGD(m.parameters(), lr=0.1), adam])
def test_where_there_is_nothing_to_damp_it_is_unavailable(make):
    with pytest.raises(Unavailable, match="first moments"):
        DampOptimizerState().apply(trained(make, 0), None, None)


def test_where_there_is_nothing_to_forget_it_is_unavailable():
    target = trained(adam, 0)
    with pytest.raises(Unavailable, match="knows nothing"):
        DampOptimizerState(reset=True).apply(target, None, None)
    assert target.effects == {}


def test_an_optimizer_without_a_learning_rate_is_not_reset():
    target = trained(adam)
    for group in target.optimizer.param_groups:
        del group["lr"]
    with pytest.raises(Unavailable, match="re-warm"):
        DampOptimizerState(reset=True).apply(target, None, None)
    assert len(target.optimizer.state) == 4
