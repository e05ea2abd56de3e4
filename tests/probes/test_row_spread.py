"""Row spreads: 0 for units that are all alike, whatever their entries; NaN where there are no units to compare."""

import math

import pytest
import torch

from gradguard.probes.row_spread import row_spreads


@pytest.mark.parametrize(
    "weight",
    [torch.full((4, 3), 0.01), torch.randn(1, 5, generator=torch.Generator().manual_seed(0)).expand(6, 5).contiguous()],
    ids=["constant", "equal rows"],
)
def test_equal_units_have_no_spread(weight):
    assert row_spreads([weight]).tolist() == [pytest.approx(0.0, abs=1e-6)]


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_random_units_have_much_whatever_their_scale(scale):
    weight = scale * torch.randn(64, 3, 600, generator=torch.Generator().manual_seed(0))
    assert row_spreads([weight])[0] == pytest.approx(1.0, abs=0.05)


def test_what_has_no_units_to_compare_is_nan():
    params = [
        torch.ones(4),
        torch.ones(1, 4),
        torch.zeros(4, 4),
        torch.ones(0, 4),
        torch.ones(4, 0),
        torch.ones(4, 4, dtype=torch.int64),
        torch.ones(4, 4, device="meta"),
        torch.eye(3).to_sparse(),
        torch.nn.parameter.UninitializedParameter(),
    ]
    assert all(math.isnan(value) for value in row_spreads(params).tolist())


def test_nothing_is_changed_and_order_is_kept():
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.bfloat16)
    assert row_spreads([torch.ones(2), weight, torch.ones(2, 2)])[1:].tolist() == [1.0, 0.0]
    assert weight.tolist() == [[1.0], [-1.0]]
