"""rescale multiplies the gradients of the rule's parameters by its factor."""

import math

import pytest
import torch
from aim import aim, finding_about, grads_of, remember
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.contracts import REMEDIES, Unavailable


LAW = settings(max_examples=40, deadline=None, derandomize=True)
Rescale = REMEDIES.get("rescale")
GRADS = [torch.tensor([3.0, 4.0]), torch.tensor(12.0), None, torch.zeros(0)]


@LAW
@given(st.floats(0, 10), st.one_of(st.none(), st.sets(st.integers(0, 3))))
def test_the_selected_gradients_are_multiplied_and_the_norms_noted(factor, rows):
    target = aim(*GRADS)
    rows = None if rows is None else sorted(rows)
    change = Rescale(factor=factor).apply(target, None, rows)
    chosen = range(4) if rows is None else rows
    for row, grad in enumerate(GRADS):
        if grad is not None:
            expected = grad * factor if row in chosen else grad
            torch.testing.assert_close(grads_of(target)[row], expected)
            assert target.stats.norms[row] == pytest.approx(float(expected.norm()))
    total = sum(float(norm) ** 2 for norm in target.stats.norms if norm >= 0) ** 0.5
    assert target.stats.global_norm == pytest.approx(total, rel=1e-6)
    assert target.clip_coef == pytest.approx(factor if rows is None else 1.0)
    is_moot = factor == 1.0 or not set(chosen) - {2}
    assert (change is None) == is_moot


def test_the_change_tells_the_norms_and_how_many():
    change = Rescale(factor=0.5).apply(aim(*GRADS), None, [0, 1])
    assert change.before == {"global_norm": pytest.approx(13.0)}
    assert change.after == {"global_norm": pytest.approx(6.5), "factor": 0.5, "parameters": 2}


def norm_of(target, *rows):
    return math.hypot(*[float(target.params[row].grad.norm()) for row in rows])


@pytest.mark.parametrize("goal", [0.5, 40.0])
@pytest.mark.parametrize("rows", [None, (0,), (0, 1)])
def test_gradients_are_brought_to_a_norm_from_above_and_below(goal, rows):
    target = aim(*GRADS)
    others = [row for row in (0, 1) if rows is not None and row not in rows]
    change = Rescale(to_norm=goal).apply(target, None, rows)
    members = (0, 1) if rows is None else rows
    assert norm_of(target, *members) == pytest.approx(goal, rel=1e-6)
    assert all(torch.equal(target.params[row].grad, GRADS[row]) for row in others)
    assert change.after["global_norm"] == pytest.approx(norm_of(target, 0, 1), rel=1e-6)


@pytest.mark.parametrize(("limit", "rows", "expected"), [(1.5, None, 6.0), (1.5, (1,), 3.0)])
def test_the_norm_may_be_a_multiple_of_what_it_was(limit, rows, expected):
    target = aim(*GRADS)
    remember(target, [4.0, 9.0, 2.0, math.nan, math.nan])
    Rescale(to_norm={"median_times": limit}).apply(target, None, rows)
    assert norm_of(target, *(rows or (0, 1))) == pytest.approx(expected, rel=1e-6)


def test_what_was_usual_for_some_together_is_the_norm_of_these_together():
    target = aim(*GRADS)
    remember(target, [99.0, 3.0, 4.0, math.nan, math.nan])
    Rescale(to_norm={"percentile": 50, "window": 50}).apply(target, None, [0, 1])
    assert norm_of(target, 0, 1) == pytest.approx(5.0, rel=1e-6)


@pytest.mark.parametrize("is_against_median", [True, False])
def test_while_nothing_is_known_to_go_by_it_is_unavailable_and_at_every_step_it_waits(is_against_median):
    target = aim(*GRADS)
    remember(target, [math.nan if is_against_median else 4.0] * 5)
    remedy = Rescale(to_norm={"median_times": 1.0})
    with pytest.raises(Unavailable, match="to_norm as a number"):
        remedy.apply(target, finding_about(is_against_median=is_against_median), None)
    if is_against_median:
        assert remedy.apply(target, None, None) is None
    assert all(torch.equal(target.params[row].grad, GRADS[row]) for row in (0, 1))


@pytest.mark.parametrize("entry", [0.0, math.nan, math.inf, 1e-42])
def test_what_has_no_norm_to_divide_by_is_left_alone(entry):
    target = aim(torch.tensor([entry]))
    assert Rescale(to_norm=1.0).apply(target, None, None) is None
    assert target.params[0].grad.isfinite().all() == math.isfinite(entry)


@pytest.mark.parametrize("options", [{}, {"factor": 0.5, "to_norm": 1.0}])
def test_it_needs_one_of_its_two_forms(options):
    with pytest.raises(ValueError, match="either 'factor' or 'to_norm'"):
        Rescale(**options)
