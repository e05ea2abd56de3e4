"""Nested state through JSON and back."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradguard.record.exact import from_exact, to_exact


KEYS = st.text() | st.integers()
ARRAYS = arrays.arrays(st.sampled_from([np.float32, np.float64, np.int64, np.bool_]), arrays.array_shapes(min_side=0))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return isinstance(b, float) and (a == b or (math.isnan(a) and math.isnan(b)))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(deadline=None, derandomize=True)
@given(VALUES)
def test_every_state_comes_back_as_it_was(value):
    assert same(value, from_exact(json.loads(json.dumps(to_exact(value), allow_nan=False))))


@pytest.mark.parametrize(
    "told",
    [
        {"surprise": 1},
        {"array": "|O", "shape": [1], "data": ""},
        {"array": "<f4", "shape": [2], "data": ""},
        {"array": "<f4", "shape": [10**6, 10**6], "data": ""},
        {"array": "<f4", "shape": [-1], "data": ""},
        {"map": [[[1], 2]]},
        {"float": "one"},
    ],
)
def test_what_was_not_written_by_it_is_refused(told):
    with pytest.raises((ValueError, TypeError)):
        from_exact(told)


def test_a_claim_of_endless_nesting_is_refused():
    value = []
    for _ in range(100):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        from_exact(value)


def test_an_array_that_unpacks_to_more_than_it_says_is_refused():
    told = to_exact(np.zeros(10**6, dtype=np.int64))
    with pytest.raises(ValueError, match="takes 8 bytes"):
        from_exact({**told, "shape": [1]})


def test_what_has_no_exact_form_is_refused():
    with pytest.raises(ValueError, match="cannot write a set"):
        to_exact({1, 2})
