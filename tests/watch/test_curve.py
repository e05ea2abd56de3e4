import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradguard.watch.curve import ASCII, BLOCKS, columns_of, draw


values = arrays(np.float64, st.integers(0, 200), elements=st.floats(width=64))


@given(values, st.integers(1, 90), st.integers(1, 4), st.sampled_from([None, True, False]))
def test_any_numbers_are_drawn_within_the_picture(numbers, width, height, is_log):
    curve = draw(numbers, width, height, is_log)
    assert len(curve.lines) == height
    assert all(len(line) == width for line in curve.lines)
    assert set("".join(curve.lines)) <= set(BLOCKS)
    assert all(0 <= column < width for column in curve.nonfinite)


@given(arrays(np.float64, st.integers(1, 200), elements=st.floats(1e-6, 1e6)), st.integers(1, 90))
def test_the_highest_value_fills_its_column(numbers, width):
    curve = draw(numbers, width)
    column = columns_of(len(numbers), width)[numbers.argmax()]
    if numbers.max() > curve.low:
        assert curve.lines[0][column] == BLOCKS[-1]
    assert curve.high == numbers.max()


def test_a_spike_of_one_step_in_a_thousand_is_seen():
    numbers = np.ones(1000)
    numbers[777] = 100.0
    (line,) = draw(numbers, 50).lines
    assert line.index(BLOCKS[-1]) == 777 * 50 // 1000
    assert line.count(BLOCKS[1]) == 49


def test_what_is_not_finite_is_told_by_its_column():
    numbers = np.array([1.0, np.nan, 2.0, np.inf])
    assert draw(numbers, 4).nonfinite == (1, 3)
    assert draw(np.full(3, np.nan), 3).lines == ("   ",)


def test_a_norm_of_zero_is_drawn_at_the_bottom_of_a_logarithmic_scale():
    curve = draw(np.array([0.0, 1.0, 100.0]), 3, is_log=True)
    assert (curve.low, curve.high, curve.is_log) == (1.0, 100.0, True)
    assert curve.lines == (f"{BLOCKS[1]}{BLOCKS[1]}{BLOCKS[8]}",)


def test_fewer_steps_than_columns_leave_columns_empty():
    assert draw(np.array([1.0, 2.0]), 5).lines[0][2:] == "   "


@pytest.mark.parametrize("ramp", [BLOCKS, ASCII])
def test_a_ramp_has_nine_characters(ramp):
    assert len(ramp) == 9
