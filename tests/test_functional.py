"""The tensor maths agrees with its float64 reference, over dtypes, layouts, shapes and magnitudes."""

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.functional import (
    clip_coefficient,
    dense_values,
    exact_norm,
    grad_norms,
    nonfinite_tensors,
    scale_,
    writable_values,
)


LAW = settings(max_examples=40, deadline=None, derandomize=True)
REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*REAL, torch.complex64, torch.complex128]
SHAPES = [(), (1,), (0,), (3, 0), (5,), (2, 3), (2, 1, 3, 2)]


@st.composite
def gradients(draw, dtypes=DTYPES, max_exponent=4):
    """A finite gradient of any shape and dtype."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    values = torch.randn(draw(st.sampled_from(SHAPES)), generator=generator, dtype=torch.float64)
    return (values * 10.0 ** draw(st.integers(-3, max_exponent))).to(draw(st.sampled_from(dtypes)))


def repeated(index, values, shape):
    """A sparse gradient that is not coalesced: entries of one index add up."""
    return torch.sparse_coo_tensor(torch.tensor([index]), torch.tensor(values), shape, check_invariants=True)


@LAW
@given(st.lists(gradients(max_exponent=3), max_size=6))
def test_norms_agree_with_the_reference(grads):
    expected = [reference.norm(grad) for grad in grads]
    np.testing.assert_allclose(grad_norms(grads), expected, rtol=1e-6)


@LAW
@given(gradients(max_exponent=3))
def test_the_exact_norm_agrees_with_the_reference(grad):
    norm, num_nan, num_inf = exact_norm(grad)
    assert (num_nan, num_inf) == (0, 0)
    assert norm == pytest.approx(reference.norm(grad), rel=1e-12)


@LAW
@given(gradients(), st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), max_size=3))
def test_the_exact_norm_counts_bad_entries_and_measures_the_others(grad, bad):
    parts = dense_values(grad).reshape(-1)
    for position, value in zip(range(len(parts)), bad, strict=False):
        parts[position] = value
    norm, *counts = exact_norm(grad)
    assert tuple(counts) == reference.num_nonfinite(grad)
    assert norm == pytest.approx(reference.norm(grad), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_accumulated_wider(dtype):
    """600 entries of 300 have a norm that float16 cannot sum up to, since 300^2 alone is beyond it."""
    grad = torch.full((600,), 300.0, dtype=dtype)
    assert grad_norms([grad])[0] == pytest.approx(300.0 * math.sqrt(600), rel=1e-6)


def test_a_norm_beyond_float32_is_told_from_an_infinite_entry():
    grad = torch.full((100,), 1e38)
    assert grad_norms([grad])[0] == math.inf
    norm, num_nan, num_inf = exact_norm(grad)
    assert (num_nan, num_inf) == (0, 0)
    assert norm == pytest.approx(1e39)
    assert nonfinite_tensors([grad]) == []


def test_a_norm_whose_squares_underflow_is_still_exact():
    assert exact_norm(torch.full((4,), 1e-30))[0] == pytest.approx(2e-30)


def test_the_exact_norm_of_nothing_is_zero():
    assert exact_norm(torch.zeros(0)) == (0.0, 0, 0)
    assert exact_norm(torch.zeros(3)) == (0.0, 0, 0)
    assert exact_norm(torch.tensor([math.nan])) == (0.0, 1, 0)


def test_entries_of_a_sparse_gradient_add_up_before_they_are_measured():
    grad = repeated([0, 2, 0], [3.0, 4.0, -3.0], (5,))
    assert grad_norms([grad])[0] == pytest.approx(4.0)
    assert exact_norm(grad)[0] == pytest.approx(4.0)


def test_a_sparse_gradient_without_entries_has_norm_zero():
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0), (5,), check_invariants=True)
    assert grad_norms([empty, torch.ones(1)]).tolist() == [0.0, 1.0]


def test_a_gradient_that_is_conjugated_lazily_can_be_measured_and_changed():
    """Autograd hands over such gradients for complex parameters, and optimizers like SGD take them."""
    grad = torch.tensor([3.0 + 4.0j]).conj()
    assert grad.is_conj()
    assert grad_norms([grad])[0] == pytest.approx(5.0)
    assert exact_norm(grad)[0] == pytest.approx(5.0)
    writable_values(grad).clamp_(-1.0, 1.0)
    assert grad.resolve_conj().tolist() == [1.0 - 1.0j]


def test_measuring_writes_nothing():
    grads = [torch.randn(3), torch.full((2,), math.inf), repeated([1, 1], [1.0, 2.0], (4,))]
    before = [grad.clone() for grad in grads]
    versions = [grad._version for grad in grads]
    grad_norms(grads), nonfinite_tensors(grads)
    for grad in grads:
        exact_norm(grad)
    assert [grad._version for grad in grads] == versions
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(grads, before, strict=True))
    assert not grads[2].is_coalesced()


def test_only_floating_tensors_with_a_bad_entry_are_named():
    tensors = [
        torch.tensor(1),
        torch.tensor([True]),
        torch.tensor([1.0, math.nan]),
        torch.zeros(0),
        torch.full((3,), 1e300, dtype=torch.float64),
        torch.tensor(complex(0.0, -math.inf)),
        torch.tensor(65504.0, dtype=torch.float16),
        repeated([0, 1], [1.0, math.inf], (3,)),
    ]
    assert nonfinite_tensors(tensors) == [2, 5, 7]
    assert nonfinite_tensors([]) == []


def test_tensors_that_need_gradients_can_be_looked_through():
    assert nonfinite_tensors([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.tensor([math.nan]))]) == [1]


@LAW
@given(st.floats(0, 1e30), st.floats(1e-30, 1e30))
def test_the_coefficient_agrees_with_the_reference_and_never_enlarges(norm, max_norm):
    factor = clip_coefficient(norm, max_norm)
    assert factor == pytest.approx(reference.clip_coefficient(norm, max_norm), rel=1e-15)
    assert 0.0 < factor <= 1.0
    assert norm * factor <= max_norm * (1 + 1e-12)


@LAW
@given(st.lists(gradients(dtypes=[torch.float32, torch.float64, torch.complex64]), max_size=4), st.floats(0, 3))
def test_scaling_multiplies_every_entry(grads, factor):
    expected = [grad * factor for grad in grads]
    scale_(grads, factor)
    torch.testing.assert_close(grads, expected)


def test_scaling_keeps_the_layout_of_sparse_gradients():
    grad = repeated([0, 2, 0], [3.0, 4.0, 1.0], (5,))
    scale_([grad, dense := torch.ones(2, dtype=torch.float16)], 0.5)
    assert grad.layout == torch.sparse_coo
    assert grad.to_dense().tolist() == [2.0, 0.0, 2.0, 0.0, 0.0]
    assert dense.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "grad",
    [
        torch.tensor([-3.0, 0.5]),
        torch.tensor(7.0),
        torch.tensor([complex(3.0, -4.0)]),
        repeated([0, 1], [5.0, -0.5], (3,)).coalesce(),
    ],
    ids=["dense", "scalar", "complex", "sparse"],
)
def test_what_is_written_to_the_values_is_written_to_the_gradient(grad):
    grad = grad.clone()
    writable_values(grad).clamp_(-1.0, 1.0)
    assert reference.norm(grad) <= math.sqrt(2)
    assert max(map(abs, reference.entries(grad))) == 1.0


def test_repeated_entries_are_summed_before_they_are_changed():
    """Clamping 3 and -2.5 apart would give 0; their sum is 0.5 and within the limit."""
    grad = repeated([1, 1, 2], [3.0, -2.5, 4.0], (4,))
    writable_values(grad).clamp_(-1.0, 1.0)
    assert grad.is_coalesced()
    assert grad.to_dense().tolist() == [0.0, 0.5, 1.0, 0.0]
