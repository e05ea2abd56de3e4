import base64

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradguard.report.sketch import pack, sketch


LAW = settings(max_examples=60, deadline=None, derandomize=True)
NUMBERS = st.floats(width=32)
TABLES = hnp.arrays(np.float32, st.tuples(st.integers(1, 25), st.integers(1, 3)), elements=NUMBERS)


def unpack(text):
    halves = np.frombuffer(base64.b64decode(text), dtype="<u2").astype(np.uint32)
    return (halves << np.uint32(16)).view(np.float32)


@LAW
@given(TABLES, st.integers(1, 12))
def test_a_sketch_keeps_the_extremes_of_every_stretch(rows, num_buckets):
    """What is not finite counts as the largest; NaN stands for no value."""
    steps = np.arange(len(rows)) * 3
    drawn = sketch(steps, lambda start, stop: rows[start:stop], rows.shape[1], num_buckets)
    assert drawn.first[0] == steps[0]
    assert drawn.last[-1] == steps[-1]
    for bucket, (first, last) in enumerate(zip(drawn.first, drawn.last, strict=True)):
        part = rows[first // 3 : last // 3 + 1]
        for column in range(rows.shape[1]):
            values = part[:, column]
            values = np.abs(values[np.isinf(values)]).tolist() + values[np.isfinite(values)].tolist()
            low, high = drawn.values[0, bucket, column], drawn.values[-1, bucket, column]
            if values:
                assert (low, high) == (min(values), max(values))
            else:
                assert np.isnan(low)
                assert np.isnan(high)


@LAW
@given(TABLES, st.integers(1, 12))
def test_the_stretches_cover_all_steps_once_and_their_numbers_ascend(rows, num_buckets):
    drawn = sketch(np.arange(len(rows)), lambda start, stop: rows[start:stop], rows.shape[1], num_buckets)
    assert (drawn.first[1:] == drawn.last[:-1] + 1).all()
    known = np.where(np.isnan(drawn.values), np.float32(0), drawn.values)
    assert (known[1:] >= known[:-1]).all()


def test_quartiles_are_those_of_the_rows():
    rows = np.arange(101.0)[:, None]
    drawn = sketch(np.arange(101), lambda start, stop: rows[start:stop], 1, 1)
    assert drawn.values[:, 0, 0].tolist() == [0, 25, 50, 75, 100]


def test_rows_are_read_stretch_by_stretch():
    asked = []

    def read(start, stop):
        asked.append(stop - start)
        return np.zeros((stop - start, 2))

    sketch(np.arange(1000), read, 2, 10)
    assert max(asked) == 100


def test_of_no_rows_there_is_an_empty_sketch():
    drawn = sketch(np.empty(0, dtype=np.int64), lambda start, stop: np.empty((0, 3)), 3, 10)
    assert drawn.values.shape == (1, 0, 3)
    assert len(drawn.first) == 0


@LAW
@given(hnp.arrays(np.float32, 20, elements=NUMBERS))
def test_packed_numbers_are_right_to_half_a_percent_and_stay_what_they_are(values):
    back = unpack(pack(values))
    assert (np.isnan(back) == np.isnan(values)).all()
    assert (np.isinf(back) == np.isinf(values)).all()
    normal = np.isfinite(values) & (np.abs(values) >= np.finfo(np.float32).tiny)
    assert back[normal] == pytest.approx(values[normal], rel=2**-8)
    assert (np.signbit(back) == np.signbit(values))[~np.isnan(values)].all()
