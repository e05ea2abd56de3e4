"""The edges can be told from what is recorded, and a packed share is what it was but for a few percent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradguard.gradients.magnitude_bins import NUM_BINS, NUM_SIDE, bin_edges, pack_shares, unpack_shares


@given(peak=st.floats(2.0**-140, 2.0**127, width=32), share=st.floats(-1, 1))
def test_the_outermost_edges_are_beyond_the_largest_magnitude_by_a_factor_of_four_at_most(peak, share):
    edges = bin_edges(peak, peak * share)
    assert edges.shape == (NUM_BINS + 1,)
    assert edges[-1] > peak
    assert edges[-1] <= 4 * peak or peak < 2.0**-125
    np.testing.assert_array_equal(edges, -edges[::-1])
    np.testing.assert_array_equal(edges, bin_edges(-peak * share, -peak))


def test_edges_are_four_times_apart_and_the_middle_holds_what_is_smaller():
    edges = bin_edges(1.0, -0.1)
    np.testing.assert_array_equal(edges[NUM_SIDE + 1 :], 2.0 * 4.0 ** np.arange(-12, 1))


def test_edges_of_tiny_entries_have_no_width_below_the_smallest_magnitude():
    edges = bin_edges(2.0**-122, 0.0)
    assert edges[-1] == 2.0**-121
    assert (edges[NUM_SIDE + 1 : -2] == 2.0**-125).all()
    assert (bin_edges(0.0, 0.0)[NUM_SIDE + 1 :] == 2.0**-125).all()


@pytest.mark.parametrize("extremes", [(np.nan, np.nan), (np.inf, 0.0), (0.0, -np.inf)])
def test_there_are_no_edges_without_finite_extremes(extremes):
    assert np.isnan(bin_edges(*extremes)).all()


@given(share=st.floats(2.0**-31, 1.0))
def test_a_packed_share_is_kept_to_4_and_a_half_percent(share):
    (found,) = unpack_shares(pack_shares(np.array([share])))
    assert found == pytest.approx(share, rel=0.045)


def test_only_an_empty_bin_looks_empty():
    assert pack_shares(np.array([0.0, 1e-30, np.nan])).tolist() == [0, 1, 0]
