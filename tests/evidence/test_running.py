"""Rolling statistics agree with the reference over any history; nothing poisons them, nothing locks them."""

import copy
import math

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.evidence.running import LossWindow, NormWindow
from gradguard.evidence.stats import ABSENT


LAW = settings(max_examples=60, deadline=None, derandomize=True)
NORMS = st.one_of(
    st.floats(2.0**-100, 2.0**100, width=32),
    st.sampled_from([ABSENT, 0.0, -0.0, math.nan, math.inf, 3.4028234663852886e38, 1e-45]),
)
LOSSES = st.one_of(st.floats(-1e6, 1e6), st.floats(0.5, 2.0), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))


@st.composite
def norm_histories(draw):
    """(window size, list of steps, each one norm a row)."""
    rows = draw(st.integers(1, 3))
    steps = draw(st.lists(st.lists(NORMS, min_size=rows, max_size=rows), max_size=25))
    return draw(st.integers(2, 6)), rows, steps


def pushed(rows, size, steps):
    window = NormWindow(rows, size)
    for values in steps:
        window.push(np.array(values, dtype=np.float32))
    return window


def assert_agrees(window, rows, size, steps):
    assert window.steps == min(len(steps), size)
    for row in range(rows):
        accepted = reference.NormHistory([float(np.float32(values[row])) for values in steps]).accepted(size)
        np.testing.assert_equal(float(window.median[row]), reference.lower_median(accepted))
        assert window.counts[row] == len(accepted)
        np.testing.assert_equal(window.maximum(row), max(accepted, default=math.nan))
        expected = reference.deviation([math.log(value) for value in accepted])
        assert window.log_deviation(row) == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@LAW
@given(norm_histories())
def test_norm_statistics_agree_with_the_reference_after_every_step(history):
    size, rows, steps = history
    for count in range(len(steps) + 1):
        assert_agrees(pushed(rows, size, steps[:count]), rows, size, steps[:count])


@LAW
@given(norm_histories())
def test_nothing_but_finite_positive_norms_ever_enters(history):
    size, rows, steps = history
    window = pushed(rows, size, steps)
    inside = window.ring[~np.isnan(window.ring)]
    assert (inside > 0).all()
    assert np.isfinite(inside).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, ABSENT])
@pytest.mark.parametrize("size", [2, 3, 10])
def test_bad_values_leave_the_statistics_usable_and_are_gone_after_a_window(bad, size):
    window = pushed(1, size, [[1.0]] * size + [[bad]])
    assert window.median[0] == 1.0
    for _ in range(size):
        window.push(np.ones(1, dtype=np.float32))
    assert window.counts[0] == size


def test_one_bad_row_takes_nothing_from_the_others():
    window = pushed(2, 4, [[1.0, 5.0], [math.nan, 6.0], [2.0, 7.0]])
    assert window.counts.tolist() == [2, 3]
    assert window.median.tolist() == [1.0, 6.0]


@LAW
@given(st.integers(2, 20), st.floats(1e-3, 1e3), st.sampled_from([1e-6, 0.1, 2.0, 1e6]))
def test_after_a_change_of_level_the_median_follows_within_half_a_window(size, level, factor):
    window = pushed(1, size, [[level]] * (2 * size))
    new = np.float32(level * factor)
    for _ in range(size // 2 + 1):
        window.push(np.array([new], dtype=np.float32))
    assert window.median[0] == new


@LAW
@given(st.integers(3, 20), st.data())
def test_outliers_below_half_a_window_move_the_median_by_nothing(size, data):
    """So one spike neither hides the next nor lifts a limit made of the median."""
    spikes = data.draw(st.integers(0, (size - 1) // 2))
    window = pushed(1, size, [[1.0]] * size + [[1e9]] * spikes)
    assert window.median[0] == 1.0


@LAW
@given(norm_histories(), st.integers(0, 25))
def test_a_restored_norm_window_goes_on_as_the_original(history, cut):
    size, rows, steps = history
    window = pushed(rows, size, steps[:cut])
    twin = NormWindow(rows, size)
    twin.load_state_dict(window.state_dict())
    for values in steps[cut:]:
        window.push(np.array(values, dtype=np.float32))
        twin.push(np.array(values, dtype=np.float32))
    for name, value in window.state_dict().items():
        np.testing.assert_array_equal(twin.state_dict()[name], value)
    assert_agrees(twin, rows, size, steps)


def test_a_saved_norm_window_is_a_copy():
    window = pushed(2, 3, [[1.0, 2.0]])
    saved = window.state_dict()
    kept = copy.deepcopy(saved)
    window.push(np.array([9.0, 9.0], dtype=np.float32))
    other = NormWindow(2, 3)
    other.load_state_dict(saved)
    other.push(np.array([7.0, 7.0], dtype=np.float32))
    for name, value in kept.items():
        np.testing.assert_array_equal(saved[name], value)


def test_pushed_values_are_copied():
    values = np.ones(2, dtype=np.float32)
    window = NormWindow(2, 4)
    window.push(values)
    values[:] = 100.0
    window.push(np.ones(2, dtype=np.float32))
    assert window.maximum(0) == 1.0


def test_a_forgotten_norm_window_is_as_new():
    window = pushed(2, 3, [[1.0, math.nan]] * 4)
    window.forget()
    assert_agrees(window, 2, 3, [])


@LAW
@given(st.integers(2, 6), st.lists(LOSSES, max_size=25))
def test_loss_statistics_agree_with_the_reference_after_every_step(size, losses):
    window = LossWindow(size)
    finite = []
    for loss in losses:
        window.push(loss)
        finite += [loss] if math.isfinite(loss) else []
        inside = finite[-size:]
        assert list(window.values) == inside
        np.testing.assert_equal(window.median, reference.lower_median(inside))
        np.testing.assert_equal(window.maximum, max(inside, default=math.nan))
        np.testing.assert_equal(window.minimum, min(inside, default=math.nan))
        np.testing.assert_equal(window.upper, reference.upper(inside))
        assert window.deviation(is_log=False) == pytest.approx(reference.deviation(inside), nan_ok=True)
        if inside and min(inside) > 0:
            logs = reference.deviation([math.log(value) for value in inside])
            assert window.deviation(is_log=True) == pytest.approx(logs, abs=1e-12)


@LAW
@given(st.integers(2, 20), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_after_a_change_of_level_the_median_loss_follows_within_half_a_window(size, old, new):
    window = LossWindow(size)
    for loss in [old] * (2 * size) + [new] * (size // 2 + 1):
        window.push(loss)
    assert window.median == new


@pytest.mark.parametrize("size", [10, 25, 50])
def test_a_few_outliers_do_not_move_the_upper_loss_and_a_habit_does(size):
    window = LossWindow(size)
    num_outliers = min(3, size // 5)
    for loss in [1.0] * size + [1e9] * num_outliers:
        window.push(loss)
    assert window.upper == 1.0
    window.push(1e9)
    assert window.upper == 1e9


@LAW
@given(st.integers(2, 6), st.lists(LOSSES, max_size=20), st.integers(0, 20))
def test_a_restored_loss_window_goes_on_as_the_original(size, losses, cut):
    window = LossWindow(size)
    for loss in losses[:cut]:
        window.push(loss)
    twin = LossWindow(size)
    twin.load_state_dict(window.state_dict())
    for loss in losses[cut:]:
        window.push(loss)
        twin.push(loss)
    assert twin.state_dict() == window.state_dict()
    assert twin.ordered == window.ordered == sorted(window.values)


def test_a_forgotten_loss_window_is_as_new():
    window = LossWindow(3)
    window.push(1.0)
    window.forget()
    assert len(window) == 0
    assert math.isnan(window.median)
    assert window.ordered == []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(2**-10, 1024, width=32), min_size=1, max_size=60), st.sampled_from([2, 5, 20, 50]))
def test_what_is_surely_below_a_multiple_of_the_median_is_below_it(values, size):
    """Also many pushes after the medians were sorted last, while the level falls; and it is known when it can be."""
    window, times_known = NormWindow(1, size), 0
    for value in sorted(values, reverse=True):
        window.push(np.array([value], dtype=np.float32), is_plain=True)
        for candidate in (0.5, 1.5, 3.0, 30.0):
            level = np.array([candidate * value], dtype=np.float32)
            if window.is_surely_below(level, 2.0):
                times_known += 1
                exact = np.sort(window.ring[: window.steps, 0])[(window.steps - 1) // 2]
                assert not level[0] > 2.0 * exact
    assert times_known
