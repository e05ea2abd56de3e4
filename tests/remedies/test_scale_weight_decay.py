"""scale_weight_decay acts for the step alone, recovers, and gives what torch gives with the decay that it says."""

import pytest
import torch
from aim import aim_at
from torch import nn

from gradguard.contracts import REMEDIES, Unavailable
from gradguard.records import Finding


ScaleWeightDecay = REMEDIES.get("scale_weight_decay")


def two_groups(first=0.5, second=0.2):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [
        {"params": model[0].parameters(), "weight_decay": first},
        {"params": model[1].parameters(), "weight_decay": second},
    ]
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    return aim_at(model, torch.optim.SGD(groups, lr=0.1))


def decays(target):
    return [group["weight_decay"] for group in target.optimizer.param_groups]


def steps(target, count):
    """Return the decays that torch's step would see."""
    seen = []
    for step in range(count):
        for effect in target.effects.values():
            effect.before_step(target, step)
        seen.append(decays(target))
        for effect in target.effects.values():
            effect.take_off(target)
        target.effects = {name: effect for name, effect in target.effects.items() if effect.goes_on(step + 1)}
    return seen


def test_a_factor_stays_and_what_the_user_set_is_back_after_each_step():
    target = two_groups()
    change = ScaleWeightDecay(factor=0.1).apply(target, None, None)
    assert steps(target, 3) == [pytest.approx([0.05, 0.02])] * 3
    assert decays(target) == [0.5, 0.2]
    assert (change.before["weight_decay"], change.after["weight_decay"]) == pytest.approx((0.5, 0.05))


def test_it_recovers_along_a_straight_line_in_the_logarithm():
    target = two_groups()
    ScaleWeightDecay(factor=0.01, recover_steps=4).apply(target, None, None)
    assert [first for first, _ in steps(target, 6)] == pytest.approx(
        [0.5 * 0.01 ** max(0, 1 - t / 4) for t in range(6)]
    )
    assert target.effects == {}


def test_a_factor_of_0_switches_it_off_and_comes_back_along_a_straight_line():
    target = two_groups()
    ScaleWeightDecay(factor=0.0, recover_steps=4).apply(target, None, None)
    assert [first for first, _ in steps(target, 6)] == pytest.approx([0.5 * min(1.0, t / 4) for t in range(6)])


def test_a_rule_for_some_parameters_scales_their_groups_only():
    target = two_groups()
    ScaleWeightDecay(factor=0.5).apply(target, None, [3])
    assert steps(target, 1) == [pytest.approx([0.5, 0.1])]


def test_the_step_is_the_one_that_torch_takes_with_that_decay():
    target, other = two_groups(), two_groups(0.0, 0.0)
    ScaleWeightDecay(factor=0.0).apply(target, None, None)
    target.effects["scale_weight_decay"].before_step(target, 0)
    target.optimizer.step()
    other.optimizer.step()
    for ours, theirs in zip(target.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rows", [None, [0]])
def test_where_nothing_decays_it_is_unavailable(rows):
    target = two_groups(0.0, 0.2 if rows else 0.0)
    with pytest.raises(Unavailable, match="nothing to scale"):
        ScaleWeightDecay(factor=0.5).apply(target, None, rows)
    assert target.effects == {}


def test_groups_without_a_decay_are_left_alone():
    model = nn.Linear(2, 1)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    target = aim_at(model, torch.optim.LBFGS(model.parameters(), lr=0.1))
    with pytest.raises(Unavailable):
        ScaleWeightDecay(factor=0.5).apply(target, None, None)


def test_it_goes_on_after_a_resume():
    first, second = two_groups(), two_groups()
    ScaleWeightDecay(factor=0.0, recover_steps=10).apply(first, None, None)
    steps(first, 3)
    state = first.effects["scale_weight_decay"].state_dict()
    second.effects["scale_weight_decay"] = ScaleWeightDecay.restore_effect(state)
    assert second.effects["scale_weight_decay"].factor(0, 3) == first.effects["scale_weight_decay"].factor(0, 3) == 0.3


def test_a_factor_may_aim_at_a_value_of_what_was_found():
    target = two_groups()
    found = Finding(diagnosis="excess_weight_decay", step=0, value=0.05)
    ScaleWeightDecay(factor={"aim_at": 1e-4, "at_least": 1e-6}).apply(target, found, None)
    assert steps(target, 2) == [pytest.approx([0.5 / 500, 0.2 / 500])] * 2


@pytest.mark.parametrize("value", [None, 0.0])
def test_without_a_value_there_is_nothing_to_aim_by(value):
    target = two_groups()
    with pytest.raises(Unavailable, match="cannot be aimed by this finding"):
        ScaleWeightDecay(factor={"aim_at": 1e-4}).apply(
            target, Finding(diagnosis="excess_weight_decay", step=0, value=value), None
        )
    assert target.effects == {}
