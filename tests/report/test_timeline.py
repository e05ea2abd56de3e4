import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.report.timeline import timeline


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 30), max_size=60))
def test_of_a_step_that_was_taken_twice_the_last_time_counts(steps):
    line = timeline(np.array(steps, dtype=np.int64))
    assert (np.diff(line.steps) > 0).all()
    last = {step: row for row, step in enumerate(steps)}
    for row, step in zip(line.rows, line.steps, strict=True):
        assert last[int(step)] == row
    if steps:
        assert line.steps[-1] == steps[-1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(), max_size=10))
def test_steps_that_are_not_there_have_no_place(asked):
    line = timeline(np.arange(5, 10))
    assert line.places(asked).tolist() == sorted({step - 5 for step in asked if 5 <= step < 10})
