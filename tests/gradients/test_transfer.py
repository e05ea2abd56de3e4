"""Small results arrive as they were, whatever happens to their tensors afterwards."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.gradients.transfer import Transfer


LAW = settings(max_examples=40, deadline=None, derandomize=True)
VALUES = st.floats(width=32, allow_nan=True, allow_infinity=True)


@LAW
@given(st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=5))
def test_every_part_comes_back_under_its_name_bit_for_bit(parts):
    """Also NaN, infinities, the smallest numbers and parts without a value."""
    found = Transfer({str(i): torch.tensor(values) for i, values in enumerate(parts)}).read()
    assert list(found) == [str(i) for i in range(len(parts))]
    for i, values in enumerate(parts):
        np.testing.assert_array_equal(found[str(i)], np.array(values, dtype=np.float64))
        assert found[str(i)].dtype == np.float64


def test_shapes_and_dtypes_may_be_any():
    parts = {
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "matrix": torch.arange(4.0).view(2, 2).t(),
        "bool": torch.tensor([True, False]),
        "count": torch.tensor(2**40),
        "half": torch.tensor([0.5], dtype=torch.bfloat16),
    }
    found = Transfer(parts).read()
    assert {name: values.tolist() for name, values in found.items()} == {
        "scalar": [0.1],
        "matrix": [0.0, 2.0, 1.0, 3.0],
        "bool": [1.0, 0.0],
        "count": [2.0**40],
        "half": [0.5],
    }


def test_what_is_on_its_way_is_not_changed_by_what_comes_later():
    norms = torch.tensor([3.0, 4.0], dtype=torch.float64)
    alone = Transfer({"norms": norms})
    norms.fill_(math.nan)
    assert alone.read()["norms"].tolist() == [3.0, 4.0]


def test_a_part_that_requires_grad_is_taken_without_its_graph():
    assert Transfer({"loss": torch.tensor(2.0, requires_grad=True) * 2}).read()["loss"].tolist() == [4.0]


def test_reading_twice_gives_the_same():
    transfer = Transfer({"a": torch.tensor(1.0), "b": torch.tensor([2.0, 3.0])})
    assert str(transfer.read()) == str(transfer.read())
