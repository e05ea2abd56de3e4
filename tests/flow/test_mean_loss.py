"""The loss of a step of several micro-batches is their mean, whatever these are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.flow.mean_loss import mean_loss


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_the_mean_of_numbers_and_of_tensors_is_their_mean(losses):
    expected = math.fsum(losses) / len(losses)
    assert mean_loss(losses) == pytest.approx(expected, abs=1e-9)
    assert mean_loss([torch.tensor([loss], dtype=torch.float64) for loss in losses]) == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize(
    "losses",
    [[math.nan], [1.0, math.nan], [math.inf, 1.0], [-math.inf, -math.inf], [math.inf, -math.inf], [math.inf, math.nan]],
    ids=str,
)
def test_a_bad_loss_among_good_ones_stays_bad(losses):
    assert not math.isfinite(mean_loss(losses))


def test_losses_whose_sum_overflows_are_no_error():
    assert mean_loss([1e308, 1e308]) > 1e300
