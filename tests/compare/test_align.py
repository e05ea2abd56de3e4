import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradguard.compare.align import align


steps = st.lists(st.integers(0, 30), max_size=60).map(lambda values: np.array(values, dtype=np.int64))


@given(steps, steps)
def test_common_steps_are_those_of_both_and_rows_the_last_of_each(a, b):
    found = align(a, b)
    assert found.steps.tolist() == sorted(set(a.tolist()) & set(b.tolist()))
    assert found.only_a.tolist() == sorted(set(a.tolist()) - set(b.tolist()))
    assert found.only_b.tolist() == sorted(set(b.tolist()) - set(a.tolist()))
    for rows, own in ((found.rows_a, a), (found.rows_b, b)):
        assert own[rows].tolist() == found.steps.tolist()
        for row, step in zip(rows, found.steps, strict=True):
            assert step not in own[row + 1 :]
