"""scale_lr puts its factor on the learning rate for the step alone, and recovers along a straight line in ln(lr)."""

import itertools
import math

import pytest
import torch
from aim import aim, aim_at
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES, Unavailable
from gradguard.records import Cause, Finding


LAW = settings(max_examples=40, deadline=None, derandomize=True)
ScaleLR = REMEDIES.get("scale_lr")


def rates(target):
    return [float(group["lr"]) for group in target.optimizer.param_groups]


def goes_on(effect, target, step):
    """What the guard does with an effect after a step."""
    effect.take_off(target)
    return effect.goes_on(step + 1)


def steps(target, count, first=0):
    """Return the rates that torch's step would see at so many steps, as the pipeline drives the effects."""
    seen = []
    for step in range(first, first + count):
        for effect in target.effects.values():
            effect.before_step(target, step)
        seen.append(rates(target))
        for name in [name for name, effect in target.effects.items() if not goes_on(effect, target, step)]:
            del target.effects[name]
    return seen


def two_groups():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters(), "lr": 0.01}], lr=1.0
    )
    return aim_at(model, optimizer)


def test_a_cut_without_recovery_stays():
    target = aim(torch.ones(2))
    ScaleLR(factor=0.5).apply(target, None, None)
    assert [rate for (rate,) in steps(target, 100)] == [0.05] * 100
    assert rates(target) == [0.1]


@LAW
@given(st.floats(0.01, 3.0), st.integers(1, 40))
def test_a_cut_recovers_along_a_straight_line_in_ln_lr_and_is_over(factor, recover):
    target = aim(torch.ones(2))
    ScaleLR(factor=factor, recover_steps=recover).apply(target, None, None)
    seen = [rate for (rate,) in steps(target, recover + 3)]
    expected = [0.1 * factor ** max(0.0, 1.0 - step / recover) for step in range(recover + 3)]
    assert seen == pytest.approx(expected)
    assert seen[recover:] == [0.1] * 3
    assert target.effects == {}


def test_the_line_is_straight():
    target = aim(torch.ones(2))
    ScaleLR(factor=0.1, recover_steps=10).apply(target, None, None)
    logs = [math.log(rate) for (rate,) in steps(target, 11)]
    slopes = [later - earlier for earlier, later in itertools.pairwise(logs)]
    assert slopes == pytest.approx([math.log(10) / 10] * 10)


def test_several_cuts_multiply_and_recover_each_on_its_own():
    target = aim(torch.ones(2))
    ScaleLR(factor=0.5).apply(target, None, None)
    ScaleLR(factor=0.1, recover_steps=4).apply(target, None, None)
    seen = [rate for (rate,) in steps(target, 6)]
    assert seen == pytest.approx([0.05 * 0.1 ** max(0, 1 - step / 4) for step in range(6)])


def test_a_cut_starts_at_the_step_it_is_made():
    target = aim(torch.ones(2))
    target.stats.step = 100
    ScaleLR(factor=0.1, recover_steps=2).apply(target, None, None)
    assert [rate for (rate,) in steps(target, 3, first=100)] == pytest.approx([0.01, 0.1 * 0.1**0.5, 0.1])


def test_the_change_tells_both_rates():
    target = aim(torch.ones(2))
    ScaleLR(factor=0.5).apply(target, None, None)
    change = ScaleLR(factor=0.5, recover_steps=7).apply(target, None, None)
    assert change.before == {"lr": pytest.approx(0.05), "factor": 0.5}
    assert change.after == {"lr": pytest.approx(0.025), "factor": 0.25, "recover_steps": 7}
    assert change.summary == "learning rate 0.05 -> 0.025, back over 7 steps"


def test_the_product_of_all_cuts_has_a_floor():
    target = aim(torch.ones(2))
    for _ in range(10):
        ScaleLR(factor=0.1, min_factor=0.005).apply(target, None, None)
    assert steps(target, 1) == [[pytest.approx(0.1 * 0.005)]]


def test_the_floor_holds_for_every_group_that_is_cut():
    target = two_groups()
    for _ in range(3):
        ScaleLR(factor=0.1, min_factor=0.01).apply(target, None, [2])
    ScaleLR(factor=0.1, min_factor=0.01).apply(target, None, None)
    ((first, second),) = steps(target, 1)
    assert first >= 0.1 * 0.01 * (1 - 1e-9)
    assert second >= 0.01 * 0.01 * (1 - 1e-9)


def test_a_factor_above_one_is_not_held_down_by_the_floor():
    target = aim(torch.ones(2))
    ScaleLR(factor=2.0).apply(target, None, None)
    assert steps(target, 1) == [[0.2]]


def test_a_rule_on_some_parameters_cuts_the_groups_that_hold_them():
    target = two_groups()
    change = ScaleLR(factor=0.5).apply(target, None, [3])
    assert steps(target, 1) == [[0.1, 0.005]]
    assert change.before["lr"] == 0.01
    assert rates(target) == [0.1, 0.01]


def test_a_rule_on_parameters_of_no_group_cuts_nothing():
    target = two_groups()
    ScaleLR(factor=0.5).apply(target, None, [])
    assert steps(target, 1) == [[0.1, 0.01]]


def test_a_rate_that_someone_sets_during_the_step_is_theirs():
    target = aim(torch.ones(2))
    ScaleLR(factor=0.5).apply(target, None, None)
    effect = target.effects["scale_lr"]
    effect.before_step(target, 0)
    target.optimizer.param_groups[0]["lr"] = 0.7
    goes_on(effect, target, 0)
    assert rates(target) == [0.7]


def test_a_factor_is_put_on_once_however_often_it_is_asked_for():
    target = aim(torch.ones(2))
    ScaleLR(factor=0.5).apply(target, None, None)
    effect = target.effects["scale_lr"]
    for _ in range(3):
        effect.before_step(target, 0)
    assert rates(target) == [0.05]
    goes_on(effect, target, 0)
    assert rates(target) == [0.1]


def test_a_rate_that_is_a_tensor_is_the_same_tensor_afterwards():
    model = nn.Linear(2, 1)
    rate = torch.tensor(0.1)
    target = aim_at(model, torch.optim.Adam(model.parameters(), lr=rate))
    ScaleLR(factor=0.5).apply(target, None, None)
    assert steps(target, 1) == [[pytest.approx(0.05)]]
    assert target.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)


@pytest.mark.parametrize("cut", [0, 3, 7])
def test_a_saved_effect_recovers_as_it_would_have(cut):
    whole, resumed = aim(torch.ones(2)), aim(torch.ones(2))
    ScaleLR(factor=0.1, recover_steps=10).apply(whole, None, None)
    ScaleLR(factor=0.5, recover_steps=4).apply(whole, None, None)
    steps(whole, cut)
    if "scale_lr" in whole.effects:
        resumed.effects["scale_lr"] = ScaleLR.restore_effect(whole.effects["scale_lr"].state_dict())
    assert steps(resumed, 10, first=cut) == steps(whole, 10, first=cut)


def test_an_optimizer_without_a_learning_rate_says_so_and_training_goes_on():
    class Plain(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            for group in self.param_groups:
                for param in group["params"]:
                    param.data.sub_(param.grad, alpha=0.01)

    model = nn.Linear(2, 1)
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": ["notify", {"scale_lr": {"factor": 0.5}}]}], sinks=[])
    optimizer = Plain(model.parameters())
    with gradguard.attach(model, optimizer, policy) as guard:
        model(torch.full((1, 2), math.nan)).sum().backward()
        optimizer.step()
        (withheld,) = guard.last.withheld
        assert (withheld.remedy, withheld.reason) == ("scale_lr", "unavailable")
        assert "learning rate" in withheld.detail


def found(value, follows=None):
    return Finding(diagnosis="update_ratio", step=0, value=value, follows=follows)


VANISHED = Cause(diagnosis="vanishing_gradient", step=0)


@pytest.mark.parametrize(("value", "factor"), [(1e-3, 3.0), (0.03, 0.1), (1e-9, 50.0), (9.0, 0.02)])
def test_a_factor_may_aim_at_a_value_of_what_was_found_within_bounds(value, factor):
    target = aim(torch.ones(2))
    change = ScaleLR(factor={"aim_at": 3e-3, "at_least": 0.02, "at_most": 50.0}).apply(target, found(value), None)
    assert change.after["factor"] == pytest.approx(factor)
    assert steps(target, 2) == [[pytest.approx(0.1 * factor)]] * 2


@pytest.mark.parametrize("finding", [None, *map(found, (None, 0.0, math.nan, math.inf, -1.0)), found(1e-7, VANISHED)])
def test_without_a_value_of_its_own_a_finding_is_nothing_to_aim_by(finding):
    target = aim(torch.ones(2))
    with pytest.raises(Unavailable, match="cannot be aimed by this finding"):
        ScaleLR(factor={"aim_at": 3e-3}).apply(target, finding, None)
    assert target.effects == {}


@pytest.mark.parametrize("factor", [0.0, -1.0, {"aim_at": 0.0}, {"aim_at": 1.0, "at_most": 0.0}, {"at_least": 1.0}])
def test_a_factor_that_makes_no_sense_is_refused(factor):
    with pytest.raises(ValidationError):
        ScaleLR(factor=factor)
