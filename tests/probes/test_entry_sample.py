"""The sample is unbiased, always the same, blind to the shape of a tensor, and as exact as its docstring says."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.gradients.full_statistics import measure
from gradguard.gradients.magnitude_bins import bin_edges
from gradguard.probes.entry_sample import NUM_SAMPLED, sample_positions


SAMPLED = 1024
NUM_STEPS = 300


@settings(max_examples=60, deadline=None, derandomize=True)
@given(numel=st.integers(1, 10**9), step=st.integers(0, 10**12), sampled=st.integers(1, 3000))
def test_there_is_one_position_in_every_stretch(numel, step, sampled):
    positions = sample_positions(numel, step, sampled)
    assert len(positions) == sampled
    assert 0 <= positions[0]
    assert positions[-1] < numel
    stretches = (positions.double() + 0.5) * sampled / numel - torch.arange(sampled)
    assert ((stretches > -sampled / numel) & (stretches < 1 + sampled / numel)).all()


def test_every_entry_comes_up_equally_often():
    """Also where a stretch is 1.3 entries wide, so that some entries lie in two."""
    numel, counts = 1300, torch.zeros(1300)
    for step in range(4000):
        counts += torch.bincount(sample_positions(numel, step, 1000), minlength=numel)
    expected = 4000 * 1000 / numel
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_no_column_of_a_matrix_is_preferred():
    """A stride that divides the length of the rows would see some columns only."""
    for width in (768, 1024, 2048):
        columns = torch.bincount(sample_positions(768 * width, 0) % width, minlength=width)
        expected = NUM_SAMPLED / width
        assert (columns - expected).abs().max() < 6 * math.sqrt(expected)


def test_positions_depend_on_step_and_size_only_and_on_no_global_generator():
    torch.manual_seed(1)
    first = sample_positions(10**6, 50)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(first, sample_positions(10**6, 50))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, sample_positions(10**6, 51))
    assert first[[0, 1, -1]].tolist() == sample_positions(10**6, 50)[[0, 1, -1]].tolist()


def test_positions_are_pinned():
    """A resumed run of a later version goes on with the same samples."""
    assert sample_positions(1000, 50, 4).tolist() == PINNED


PINNED = [29, 411, 583, 761]


def iid(generator):
    return torch.randn(40_000, generator=generator)


def heavy(generator):
    return torch.randn(40_000, generator=generator) ** 3 + 0.3


def embedding(generator):
    """Most rows are zero: their tokens were not in the batch."""
    rows = torch.randn(500, 80, generator=generator) * torch.exp2(-8 * torch.rand(500, 1, generator=generator)) + 0.02
    return rows * (torch.rand(500, 1, generator=generator) < 0.15)


def heads(generator):
    """Blocks of columns differ by orders of magnitude."""
    return torch.randn(400, 100, generator=generator) * (10.0 ** -torch.arange(4)).repeat_interleave(25)


def offset(generator):
    return 2.0 + torch.randn(300, 150, generator=generator)


@pytest.mark.parametrize("make", [iid, heavy, embedding, heads, offset])
def test_the_errors_of_a_sample_are_within_the_stated_standard_errors(make):
    """Over 300 samples of one tensor the root mean square error is below the stated one, and hardly any is beyond 4."""
    grad = make(torch.Generator().manual_seed(0))
    values = grad.double().numpy().ravel()
    mean, std = values.mean(), values.std()
    zeros = (values == 0).mean()
    kurtosis = ((values - mean) ** 4).mean() / std**4
    shares = np.histogram(values, bin_edges(values.max(), values.min()))[0] / values.size
    stated = {
        "mean": std / math.sqrt(SAMPLED),
        "zero_ratio": math.sqrt(zeros * (1 - zeros) / SAMPLED),
        "histogram": np.sqrt(shares * (1 - shares) / SAMPLED),
        "std": math.hypot(mean / math.sqrt(SAMPLED), math.sqrt(0.75) * std / SAMPLED)
        if abs(mean) < std
        else std * math.sqrt((kurtosis - 1) / (4 * SAMPLED)),
    }
    exact = {"mean": mean, "zero_ratio": zeros, "histogram": shares, "std": std}
    entries = grad.reshape(-1).repeat(2)  # larger than what is read whole; the statistics are the same
    found = [measure(["a"], [entries], step, SAMPLED) for step in range(NUM_STEPS)]
    for name, error in stated.items():
        off = np.array([getattr(one, name)[0] for one in found]) - exact[name]
        if name == "histogram":  # shares of which a sample has a few entries at most are not normally distributed
            off, error = off[:, shares > 0.01], error[shares > 0.01]
        slack = 1e-6 * std
        assert (np.sqrt((off**2).mean(axis=0)) <= 1.15 * error + slack).all(), name
        far = 8 if name == "std" else 4  # that of std goes with the square of a normal deviate where the mean is small
        assert (abs(off) > far * error + slack).mean() <= 0.001, name
        bias = std / (2 * SAMPLED) if name == "std" else 0.0
        assert (abs(off.mean(axis=0)) <= 4 * error / math.sqrt(NUM_STEPS) + bias + slack).all(), f"{name} is biased"
    for name, expected in (("max", values.max()), ("min", values.min()), ("norm", np.linalg.norm(entries.double()))):
        assert getattr(found[0], name)[0] == pytest.approx(expected, rel=1e-6)
