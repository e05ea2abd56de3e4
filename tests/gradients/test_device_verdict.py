"""The device decides by the numbers of the plan as the host does by its own."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gradguard.evidence.trigger import Trigger
from gradguard.flow.foresight import Plan
from gradguard.functional import clip_coefficient
from gradguard.gradients.device_verdict import take_verdict


LAW = settings(max_examples=60, deadline=None, derandomize=True)
NORMS = torch.tensor([3.0, 4.0])
BAD = [math.nan, math.inf]


def above(limit, quantity="global_norm"):
    return Trigger(quantity, limit)


def skips(*triggers, norms=NORMS, loss=None):
    loss = None if loss is None else torch.tensor(loss, dtype=torch.float64)
    found = take_verdict(Plan(skips=list(triggers)), norms, loss).is_skipped
    return None if found is None else bool(found)


def factor(*clips, norms=NORMS, loss=None):
    loss = None if loss is None else torch.tensor(loss, dtype=torch.float64)
    found = take_verdict(Plan(clips=[list(alternatives) for alternatives in clips]), norms, loss).factor
    return None if found is None else float(found)


def test_an_empty_plan_comes_to_nothing():
    verdict = take_verdict(Plan(), NORMS, None)
    assert (verdict.is_skipped, verdict.factor) == (None, None)


def test_a_step_is_skipped_above_a_norm_not_at_it():
    assert skips(above(5.0)) is False
    assert skips(above(math.nextafter(5.0, 0.0))) is True
    assert skips(above(math.inf)) is False


def test_a_norm_is_rounded_as_the_host_rounds_it():
    norms = torch.tensor([1.0, 1e-5])  # their norm is above 1 in float64 and 1 in float32
    assert math.hypot(1.0, 1e-5) > 1.0
    assert skips(above(1.0), norms=norms) is False


def test_a_loss_counts_only_when_there_is_one():
    assert skips(above(1.0, "loss")) is None
    assert skips(above(1.0, "loss"), loss=1.0) is False
    assert skips(above(1.0, "loss"), loss=math.nextafter(1.0, 2.0)) is True
    assert skips(above(-3.0, "loss"), loss=-2.0) is True
    assert skips(above(1.0, "loss"), loss=math.nan) is False


@pytest.mark.parametrize("bad", BAD)
def test_what_is_not_finite_is_seen_in_norms_and_loss(bad):
    trigger = Trigger("nonfinite")
    assert skips(trigger) is False
    assert skips(trigger, loss=1.0) is False
    assert skips(trigger, norms=torch.tensor([1.0, bad])) is True
    assert skips(trigger, norms=torch.tensor([1.0, bad]), loss=1.0) is True
    assert skips(trigger, loss=bad) is True
    assert skips(trigger, loss=-bad) is True


def test_one_condition_of_several_is_enough():
    assert skips(above(9.0), above(1.0, "loss"), Trigger("nonfinite")) is False
    assert skips(above(9.0), above(1.0, "loss"), Trigger("nonfinite"), loss=2.0) is True
    assert skips(above(4.0), above(1.0, "loss"), loss=0.0) is True
    assert skips(above(1.0, "loss"), above(4.0)) is True


@LAW
@given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12))
def test_the_factor_of_one_limit_is_that_of_the_host(norm, limit):
    norms = torch.tensor([norm])
    assert factor([(None, limit)], norms=norms) == clip_coefficient(float(norms[0]), limit)


def test_a_limit_that_is_not_due_leaves_the_gradients_alone():
    assert factor([(above(5.0), 1.0)]) == 1.0
    assert factor([(above(4.9), 1.0)]) == clip_coefficient(5.0, 1.0)
    assert factor([(above(1.0, "loss"), 1.0)]) is None
    assert factor([(above(1.0, "loss"), 1.0)], loss=0.5) == 1.0
    assert factor([(above(1.0, "loss"), 1.0)], loss=1.5) == clip_coefficient(5.0, 1.0)


@pytest.mark.parametrize("bad", BAD)
def test_a_norm_that_is_not_finite_is_never_clipped(bad):
    norms = torch.tensor([1.0, bad])
    assert factor([(None, 1.0)], [(above(0.1), 1.0)], norms=norms) == 1.0
    assert factor([(above(0.1, "loss"), 1.0)], norms=norms, loss=5.0) == 1.0


def test_limits_apply_in_turn_each_to_what_the_one_before_left():
    first = clip_coefficient(5.0, 4.0)
    assert factor([(None, 4.0)], [(None, 2.0)]) == pytest.approx(first * clip_coefficient(5.0 * first, 2.0), rel=1e-15)
    assert factor([(None, 2.0)], [(None, 4.0)]) == clip_coefficient(5.0, 2.0)
    assert factor([(above(1.0), 4.0)], [(above(4.5), 2.0)]) < 0.41  # conditions are on what was measured


def test_of_the_alternatives_of_one_rule_the_first_that_fires_holds():
    """A rule acts once, on one finding, however many of its conditions hold."""
    assert factor([(above(1.0), 4.0), (above(2.0), 1.0)]) == clip_coefficient(5.0, 4.0)
    assert factor([(above(9.0), 4.0), (above(2.0), 1.0)]) == clip_coefficient(5.0, 1.0)
    assert factor([(above(9.0), 4.0), (above(8.0), 1.0)]) == 1.0
    assert factor([(above(1.0, "loss"), 4.0), (above(2.0), 1.0)]) == clip_coefficient(5.0, 1.0)
    assert factor([(above(1.0), 100.0), (above(2.0), 1.0)]) == 1.0


class Values(TorchDispatchMode):
    """Refuses every call that hands a value to the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.__name__.partition(".")[0] not in ("_local_scalar_dense", "equal", "is_nonzero", "nonzero")
        return func(*args, **(kwargs or {}))


def test_no_value_reaches_the_host():
    plan = Plan(
        skips=[above(1.0), above(1.0, "loss"), Trigger("nonfinite")],
        clips=[[(above(1.0), 4.0), (above(2.0), 1.0)], [(None, 1.0)]],
    )
    with Values():
        take_verdict(plan, NORMS, torch.tensor(1.0))
