"""The statistics that one looks at by hand agree with a slow float64 computation, whatever kind the gradients are."""

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard
from gradguard.gradients.columns import NUM_COUNTED, gradient_columns
from gradguard.gradients.extents import PIECE
from gradguard.gradients.full_statistics import finish, measure, refine
from gradguard.gradients.magnitude_bins import bin_edges
from gradguard.probes.entry_sample import NUM_SAMPLED


NAMES = ("mean", "std", "max", "min", "zero_ratio", "norm", "histogram")


def with_gradients(*grads):
    model = nn.ParameterList([nn.Parameter(torch.zeros_like(grad)) for grad in grads])
    for param, grad in zip(model, grads, strict=True):
        param.grad = grad
    return model


def assert_is_reference(found, row, grad):
    expected = reference.gradient_statistics(grad)
    size = expected["norm"] / math.sqrt(max(1, len(reference.entries(grad))))
    slack = 1e-6 * size if math.isfinite(size) else 0.0
    for name in NAMES:
        actual = getattr(found, name)[row]
        np.testing.assert_allclose(actual, expected[name], rtol=2e-5, atol=slack + 1e-12 * (name == "histogram"))


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@st.composite
def gradients(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (1,), (7,), (3, 4), (2, 3, 5), (40, 1)]))
    seed = draw(st.integers(0, 2**16))
    scales = [1.0, 1e-3] if dtype == torch.float16 else [1.0, 1e-3, 1e-18, 1e-30, 1e18, 1e30]
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * draw(st.sampled_from(scales))
    values = values + draw(st.sampled_from([0.0, 0.0, 1.0, -3.0])) * values.abs().max()
    if draw(st.booleans()):
        values[torch.rand(shape, generator=generator) < 0.4] = 0.0
    if draw(st.booleans()):
        values = values * torch.exp2(torch.randint(-20, 1, shape, generator=generator).double())
    bad = draw(st.sampled_from([None, None, None, math.nan, math.inf, -math.inf]))
    if bad is not None:
        values.view(-1)[seed % values.numel()] = bad
    grad = values.to(dtype)
    kind = draw(st.sampled_from(["dense", "transposed", "strided", "sparse", "repeated", "csr"]))
    if kind == "transposed":
        return grad.transpose(0, -1) if grad.dim() else grad
    if kind == "strided":
        return torch.stack([grad, grad], dim=-1)[..., 0]
    if kind == "csr" and grad.dim() == 2 and bad is None and not dtype.is_complex:
        return grad.to_sparse_csr()
    # torch makes (NaN, NaN) of a sparse (NaN, 0) when it is turned into a dense one
    if kind in ("sparse", "repeated") and grad.dim() and (bad is None or not dtype.is_complex):
        sparse = grad.to_sparse(1)
        if kind == "repeated" and bad is None and sparse._nnz():
            indices, entries = sparse.indices(), sparse.values() / 2
            return torch.sparse_coo_tensor(torch.cat([indices, indices], 1), torch.cat([entries, entries]), grad.shape)
        return sparse
    return grad


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("sample", [None, NUM_SAMPLED])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(grads=st.lists(gradients(), min_size=1, max_size=4))
def test_every_statistic_is_that_of_the_reference(sample, grads):
    found = measure([str(i) for i in range(len(grads))], grads, 0, sample)
    for row, grad in enumerate(grads):
        assert_is_reference(found, row, grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-22])
def test_a_tensor_of_many_pieces_is_measured_exactly(dtype, scale):
    grad = (torch.randn(PIECE * 2 + 1001) * torch.exp2(torch.randint(-30, 0, (PIECE * 2 + 1001,))) * scale).to(dtype)
    grad[::7] = 0
    found = measure(["a"], [grad], 0, None)
    values = grad.double().numpy()
    assert found.max[0] == values.max()
    assert found.min[0] == values.min()
    assert found.zero_ratio[0] == pytest.approx((values == 0).mean(), abs=1e-12)
    assert found.norm[0] == pytest.approx(np.linalg.norm(values), rel=1e-5)
    assert found.mean[0] == pytest.approx(values.mean(), abs=1e-6 * values.std())
    assert found.std[0] == pytest.approx(values.std(), rel=1e-5)
    edges = bin_edges(found.max[0], found.min[0])
    expected = np.histogram(values, edges)[0] / values.size  # no entry lies on the lower edge of a negative bin
    np.testing.assert_allclose(found.histogram[0], expected, atol=4 * 0.5 / math.sqrt(NUM_COUNTED))
    assert found.histogram[0].sum() == pytest.approx(1.0)


def test_a_spread_that_is_small_beside_the_mean_is_not_lost():
    for count in (1000, 100_000):
        grad = 1.0 + 1e-4 * torch.randn(count)
        found = gradguard.gradient_statistics(with_gradients(grad))
        assert found.std[0] == pytest.approx(grad.double().numpy().std(), rel=1e-3)


def test_a_gradient_that_is_the_same_everywhere_has_no_spread():
    found = gradguard.gradient_statistics(with_gradients(torch.full((1000,), 0.1), torch.full((100_000,), 0.1)))
    assert max(found.std) < 1e-7


def test_parameters_without_a_gradient_are_left_out():
    model = nn.Linear(2, 2)
    assert gradguard.gradient_statistics(model).names == []
    model.weight.grad = torch.ones(2, 2)
    assert gradguard.gradient_statistics(model).names == ["weight"]


def test_an_empty_gradient_has_no_statistics_but_a_norm():
    found = gradguard.gradient_statistics(with_gradients(torch.zeros(0, 3), torch.ones(2)))
    assert found.norm.tolist() == [0.0, pytest.approx(math.sqrt(2))]
    assert np.isnan([found.mean[0], found.std[0], found.max[0], found.min[0], found.zero_ratio[0]]).all()
    assert np.isnan(found.histogram[0]).all()


def test_a_sparse_gradient_without_entries_is_all_zeros():
    places = torch.zeros(1, 0, dtype=torch.long)
    sparse = torch.sparse_coo_tensor(places, torch.zeros(0, 3), (4, 3), check_invariants=True)
    found = measure(["a"], [sparse], 0, None)
    assert [getattr(found, name)[0] for name in NAMES[:-1]] == [0, 0, 0, 0, 1, 0]
    assert found.histogram[0].tolist() == [0.0] * 12 + [1.0] + [0.0] * 12


def test_absent_gradients_are_nan():
    found = measure(["a", "b"], [None, torch.ones(2)], 0, None)
    assert np.isnan([getattr(found, name)[0] for name in NAMES[:-1]]).all()
    assert found.mean[1] == 1.0


def test_a_sample_misses_neither_a_bad_entry_nor_an_extreme():
    grad = torch.zeros(10 * NUM_SAMPLED)
    grad[12345], grad[54321] = 7.0, -9.0
    found = measure(["a"], [grad], 0, NUM_SAMPLED)
    assert (found.max[0], found.min[0], found.norm[0]) == (7.0, -9.0, pytest.approx(math.sqrt(130)))
    grad[777] = math.nan
    found = measure(["a"], [grad], 0, NUM_SAMPLED)
    assert np.isnan([found.mean[0], found.std[0], found.norm[0], found.max[0], *found.histogram[0]]).all()


@pytest.mark.parametrize("sample", [None, 100, NUM_SAMPLED])
@pytest.mark.parametrize("factor", [1 / 1024, 1 / 3, 1e-3])
def test_a_factor_measures_what_the_product_is(sample, factor):
    grads = [torch.randn(64, 3), torch.randn(NUM_SAMPLED * 2), torch.randn(NUM_SAMPLED * 2, dtype=torch.float64)]
    found = measure(["a", "b", "c"], grads, 3, sample, factor)
    factor32 = float(np.float32(factor))
    expected = measure(["a", "b", "c"], [grad * factor32 for grad in grads], 3, sample)
    for name in NAMES:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("sample", [None, 1000, NUM_SAMPLED])
def test_the_gradients_and_the_random_numbers_stay_as_they_were(sample):
    grads = [torch.randn(64, 3), torch.randn(NUM_SAMPLED + 5), torch.randn(3, 4).t().to_sparse()]
    before = [grad.clone() for grad in grads], torch.get_rng_state(), np.random.get_state()[1].copy()
    measure(["a", "b", "c"], grads, 0, sample, 0.5)
    for grad, old in zip(grads, before[0], strict=True):
        assert torch.equal(grad.to_dense(), old.to_dense())
    assert torch.equal(before[1], torch.get_rng_state())
    np.testing.assert_array_equal(before[2], np.random.get_state()[1])


def test_the_same_step_gives_the_same_numbers_and_another_step_another_sample():
    grad = torch.randn(4 * NUM_SAMPLED)
    first, again, later = (measure(["a"], [grad], step, NUM_SAMPLED) for step in (50, 50, 100))
    assert first.mean[0] == again.mean[0] != later.mean[0]
    np.testing.assert_array_equal(first.histogram, again.histogram)


def test_a_sample_of_no_entries_is_refused():
    with pytest.raises(ValueError, match="at least 1 entry"):
        gradguard.gradient_statistics(nn.Linear(2, 2), sample=0)


def test_the_device_half_and_the_host_half_can_be_apart():
    """What is copied to the host is one tensor a device."""
    grads = [torch.randn(3), None, torch.randn(70_000), torch.randn(3).double()]
    parts = gradient_columns(grads, 0, 100)
    assert len(parts) == 1
    found = finish(["a", "b", "c", "d"], [(part, part.values.numpy()) for part in parts])
    expected = measure(["a", "b", "c", "d"], grads, 0, 100)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_norms_that_are_known_take_the_place_of_a_pass_over_memory(factor):
    names = list("abcdefgh")
    grads = [
        torch.randn(9000),
        torch.randn(2 * PIECE + 3) - 0.2,
        torch.randn(9000).bfloat16(),
        torch.randn(9000).double() * 1e30,
        torch.randn(20),
        torch.randn(9000).index_fill_(0, torch.tensor([7]), math.nan),
        torch.randn(9000).index_fill_(0, torch.tensor([7]), -math.inf),
        torch.randn(9000) * 1e-25,
    ]
    norms = np.array([float(grad.double().norm()) * factor for grad in grads])
    parts = gradient_columns(grads, 3, NUM_SAMPLED, factor, has_norms=True)
    found = finish(names, [(part, part.values.numpy()) for part in parts], norms)
    refine(found, grads, NUM_SAMPLED, factor)
    expected = measure(names, grads, 3, NUM_SAMPLED, factor)
    for name in NAMES:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=2e-5, atol=1e-30)
