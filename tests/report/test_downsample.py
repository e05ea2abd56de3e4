"""What may never be lost: an extreme, a number that is none, an intervention."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.report.downsample import kept_rows, rows_near


LAW = settings(max_examples=60, deadline=None, derandomize=True)
ODD = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30])


@st.composite
def columns_of(draw):
    """Return (C, S) numbers, a few of them odd."""
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 300))
    columns = np.random.default_rng(draw(st.integers(0, 1000))).normal(size=shape)
    for column, row, value in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 299), ODD), max_size=8)):
        columns[column % shape[0], row % shape[1]] = value
    return columns


@LAW
@given(columns_of(), st.integers(1, 20), st.data())
def test_every_bucket_keeps_its_extremes_its_first_odd_number_and_all_that_must_stay(columns, num_buckets, data):
    num_rows = columns.shape[1]
    must = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=5))
    kept = kept_rows(list(columns), must, num_buckets)
    assert set(must) <= set(kept.tolist())
    assert {0, num_rows - 1} <= set(kept.tolist())
    assert kept.tolist() == sorted(set(kept.tolist()))
    width = -(-num_rows // num_buckets)
    for column in columns:
        for start in range(0, num_rows, width):
            bucket = column[start : start + width]
            chosen = column[kept[(kept >= start) & (kept < start + width)]]
            finite = bucket[np.isfinite(bucket)]
            if len(finite):
                assert chosen[np.isfinite(chosen)].max() == finite.max()
                assert chosen[np.isfinite(chosen)].min() == finite.min()
            assert np.isfinite(bucket).all() == np.isfinite(chosen).all()


@LAW
@given(st.integers(1, 50), st.integers(1, 5000))
def test_no_more_is_kept_than_a_screen_needs(num_buckets, num_rows):
    column = np.sin(np.arange(num_rows))
    kept = kept_rows([column, column], [], num_buckets)
    assert len(kept) == num_rows if num_rows <= 4 * num_buckets else len(kept) <= 2 * num_buckets + 2


def test_nothing_is_kept_of_nothing():
    assert kept_rows([np.empty(0)], [], 10).tolist() == []


@LAW
@given(st.lists(st.integers(0, 99), max_size=20), st.integers(0, 5), st.integers(0, 60))
def test_the_neighbourhood_of_what_comes_first_fits_the_limit(centers, reach, limit):
    near = rows_near(centers, reach, 100, limit)
    assert len(near) <= limit
    assert all(0 <= row < 100 for row in near)
    for center in centers[: limit // (2 * reach + 1)]:
        assert center in near
