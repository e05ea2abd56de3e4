import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.probes import unit_statistics as unit
from gradguard.probes.boundary_statistics import BoundarySamples


def reference(values, kind):
    wide = values.astype(np.float64)
    magnitude = np.abs(wide).mean(0)
    dead = magnitude <= 0.025 * magnitude.mean() if kind == "gelu" else (values == 0).all(0)
    saturated = np.nan
    if kind == "tanh":
        saturated = (np.abs(values) > np.float32(0.99)).mean()
    if kind == "sigmoid":
        saturated = (np.abs(values - np.float32(0.5)) > np.float32(0.5 - 0.0067)).mean()
    return dead.mean(), saturated, (values == 0).mean(), wide.mean(), wide.std(), values.min()


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from(["relu", "tanh", "sigmoid", "gelu", "input"]),
    rows=st.integers(1, 9),
    units=st.integers(1, 7),
)
def test_the_numbers_are_those_of_a_slow_reference(data, kind, rows, units):
    entries = st.sampled_from([0.0, -0.0, 1e-30, 0.003, 0.5, 0.98, 0.99, 0.995, 1.0, -1.0, -0.997, 2.0])
    table = data.draw(st.lists(st.lists(entries, min_size=units, max_size=units), min_size=rows, max_size=rows))
    values = np.array(table, dtype=np.float32)
    other = values[::-1] * 2  # of the same shape: measured in the same go
    (found,) = unit.unit_columns([torch.tensor(values), torch.tensor(other.copy())], [kind, kind])
    assert found.rows == [0, 1]
    expected = np.array([reference(values, kind), reference(other, kind)])
    np.testing.assert_allclose(found.values.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_spread_far_below_the_mean_is_not_lost():
    values = torch.full((256, 4), 1e4) + torch.randn(256, 4) * 0.5
    (found,) = unit.unit_columns([values], ["relu"])
    assert found.values[0, unit.STD].item() == pytest.approx(values.double().std(correction=0).item(), rel=1e-3)


@pytest.mark.parametrize("sizes", [(5,), (4, 4, 3), (1, 1), (1, 6)])
def test_the_spread_of_the_output_is_that_within_the_passes(sizes):
    samples = BoundarySamples()
    parts = [torch.randn(size, 3) + shift for shift, size in enumerate(sizes)]
    for part in parts:
        samples.take_output(part)
    found = samples.output_stats({name: value.double().numpy() for name, value in samples.measure().items()})
    freedom = sum(size - 1 for size in sizes)
    squares = sum(((p.numpy() - p.numpy().mean(0)) ** 2).sum(0) for p in parts)
    expected = np.sqrt(squares / freedom).mean() if freedom else np.nan
    np.testing.assert_allclose(found.spread, expected, rtol=1e-5)
    assert found.num_samples == sum(sizes)
    assert found.level == pytest.approx(torch.cat(parts).abs().mean().item(), rel=1e-5)


def test_the_input_is_judged_by_its_finite_entries():
    samples = BoundarySamples()
    samples.take_inputs({"x": torch.tensor([[1.0, float("nan")], [-3.0, float("inf")]])})
    arrived = {name: value.double().numpy() for name, value in samples.measure().items()}
    (found,) = samples.input_stats(arrived)
    assert (found.name, found.largest, found.nonfinite) == ("x", 3.0, 2)
    assert (found.mean, found.std) == pytest.approx((-1.0, 2.0))
