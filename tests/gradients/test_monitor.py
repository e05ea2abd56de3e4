"""The monitor measures what is there: every dtype, layout and absence, in one pass, without a trace."""

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradguard.evidence.stats import ABSENT, StepStats
from gradguard.functional import FLOAT32_MAX
from gradguard.gradients.monitor import Monitor


LAW = settings(max_examples=40, deadline=None, derandomize=True)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(), (3,), (0,), (2, 3)]


class Bag(nn.Module):
    """Parameters p0, p1, ... with the gradients that a test wants; None stands for no gradient."""

    def __init__(self, grads, like=None):
        super().__init__()
        for index, grad in enumerate(grads):
            template = like if grad is None else grad
            param = nn.Parameter(torch.ones(template.shape, dtype=template.dtype))
            param.grad = grad
            self.register_parameter(f"p{index}", param)


class CountCalls(TorchDispatchMode):
    """Notes every call that torch makes."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def watch(*grads, like=None, optimizer=torch.optim.SGD):
    model = Bag(grads, like if like is not None else torch.ones(2))
    return Monitor(model, optimizer(model.parameters(), lr=0.1), ["*"])


def measured(monitor, inverse_scale=1.0):
    stats = StepStats(len(monitor.table))
    monitor.measure(stats, inverse_scale)
    return stats


@LAW
@given(st.integers(0, 2**16), st.integers(1, 60), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_norms_that_arrive_late_are_those_that_are_measured_at_once(seed, count, dtype):
    """Bit for bit, also where some parameters have no gradient."""
    random = torch.Generator().manual_seed(seed)
    values = [torch.randn(3, generator=random).to(dtype) for _ in range(count)]
    grads = [None if float(torch.rand((), generator=random)) < 0.3 else value for value in values]
    grads[0] = values[0]
    monitor = watch(*grads, like=values[0])
    expected, found = measured(monitor), StepStats(count)
    rows, norms = monitor.launch()
    monitor.read_late(found, rows, norms.numpy().astype(np.float64))
    assert found.levels.tobytes() == expected.levels.tobytes()
    assert (found.global_norm, found.finite) == (expected.global_norm, expected.finite)


@st.composite
def gradient_lists(draw):
    """One to five gradients of any shape and dtype, some of them missing."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    dtypes = draw(st.sampled_from([[torch.float32], [torch.bfloat16], DTYPES]))
    grads = []
    for _ in range(draw(st.integers(1, 5))):
        values = torch.randn(draw(st.sampled_from(SHAPES)), generator=generator, dtype=torch.float64)
        dtype = draw(st.sampled_from(dtypes))
        grads.append(
            None if draw(st.integers(0, 4)) == 0 else (values * draw(st.sampled_from([0.01, 1, 100]))).to(dtype)
        )
    return grads


@LAW
@given(gradient_lists())
def test_the_norms_agree_with_the_reference(grads):
    stats = measured(watch(*grads))
    expected = [ABSENT if grad is None else reference.norm(grad) for grad in grads]
    np.testing.assert_allclose(stats.norms, expected, rtol=1e-6)
    assert stats.global_norm == pytest.approx(math.hypot(*[norm for norm in expected if norm != ABSENT]), rel=1e-6)
    assert stats.levels[0] == pytest.approx(stats.global_norm)
    assert (stats.finite, stats.overflowed, stats.nonfinite) == (True, (), {})


@LAW
@given(gradient_lists(), st.data())
def test_bad_entries_are_counted_where_they_are(grads, data):
    for grad in grads:
        if grad is not None and grad.numel():
            value = data.draw(st.sampled_from([1.0, math.nan, math.inf, -math.inf]))
            torch.view_as_real(grad).view(-1)[-1:].fill_(value) if grad.is_complex() else grad.view(-1)[-1:].fill_(
                value
            )
    stats = measured(watch(*grads))
    counts = {row: reference.num_nonfinite(grad) for row, grad in enumerate(grads) if grad is not None}
    bad = {row: count for row, count in counts.items() if any(count)}
    assert stats.nonfinite == bad
    assert stats.finite == (not bad)
    for row, (num_nan, _) in bad.items():
        np.testing.assert_equal(float(stats.norms[row]), math.nan if num_nan else math.inf)
    if bad:
        np.testing.assert_equal(stats.global_norm, math.nan if any(nan for nan, _ in bad.values()) else math.inf)
        np.testing.assert_equal(float(stats.levels[0]), stats.global_norm)


def test_a_nan_in_one_parameter_leaves_the_norms_of_the_others():
    stats = measured(watch(torch.tensor([3.0, 4.0]), torch.tensor([math.nan, 1.0]), torch.ones(4)))
    assert stats.norms[[0, 2]].tolist() == [5.0, 2.0]


def test_a_norm_that_overflowed_is_told_from_an_infinite_entry():
    stats = measured(watch(torch.full((4,), 1e20), torch.ones(4), torch.tensor([math.inf])))
    assert stats.overflowed == (0,)
    assert stats.nonfinite == {2: (0, 1)}
    assert stats.norms[0] == pytest.approx(2e20)


def test_finite_entries_whose_norm_is_beyond_float32_are_finite():
    stats = measured(watch(torch.full((100,), 1e38), torch.full((400,), 1e38)))
    assert (stats.finite, stats.overflowed) == (True, (0, 1))
    assert stats.levels.tolist() == [FLOAT32_MAX] * 3
    assert stats.global_norm == pytest.approx(math.hypot(1e39, 2e39))


def test_finite_entries_whose_norm_is_beyond_float64_are_finite_and_no_nan():
    stats = measured(watch(torch.full((100,), 1e308, dtype=torch.float64), torch.ones(1, dtype=torch.float64)))
    assert (stats.finite, stats.overflowed) == (True, ())
    assert stats.global_norm > 1e308
    assert stats.levels[0] == FLOAT32_MAX


def test_a_global_norm_beyond_float32_of_norms_within_it_is_exact():
    stats = measured(watch(*[torch.tensor([3e38], dtype=torch.float64)] * 4))
    assert (stats.finite, stats.overflowed) == (True, ())
    assert stats.global_norm == pytest.approx(6e38)
    assert stats.levels[0] == FLOAT32_MAX


def test_the_next_step_knows_nothing_of_a_bad_one():
    monitor = watch(torch.tensor([math.nan]), torch.full((2,), 1e30))
    stats = measured(monitor)
    for param in monitor.params:
        param.grad = torch.ones_like(param)
    monitor.measure(stats)
    assert (stats.finite, stats.nonfinite, stats.overflowed) == (True, {}, ())
    assert stats.global_norm == pytest.approx(math.sqrt(3))


def test_a_gradient_that_comes_and_goes_is_absent_when_it_is_not_there():
    monitor = watch(torch.ones(2), torch.ones(2))
    seen = []
    for has_grad in [True, False, True]:
        monitor.params[1].grad = torch.ones(2) if has_grad else None
        seen.append(float(measured(monitor).norms[1]))
    assert seen == pytest.approx([math.sqrt(2), ABSENT, math.sqrt(2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_any_gradient_the_global_norm_is_zero(dtype):
    stats = measured(watch(None, None, like=torch.ones(2, dtype=dtype)))
    assert stats.norms.tolist() == [ABSENT, ABSENT]
    assert (stats.global_norm, stats.finite) == (0.0, True)


def test_an_optimizer_of_which_nothing_is_monitored_measures_zero():
    model = nn.Linear(2, 1)
    monitor = Monitor(model, torch.optim.SGD(model.parameters(), lr=0.1), ["nothing.*"])
    stats = measured(monitor)
    monitor.probe(stats)
    assert (stats.global_norm, stats.finite, len(stats.norms)) == (0.0, True, 0)


def test_repeated_entries_of_a_sparse_gradient_add_up():
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 1, 3])).sum().backward()
    stats = measured(Monitor(model, torch.optim.SparseAdam(model.parameters()), ["*"]))
    assert stats.norms[0] == pytest.approx(math.sqrt(2 * 2**2 + 2))
    assert not model.weight.grad.is_coalesced()


@pytest.mark.parametrize("bad", [1.0, math.nan, 1e30])
def test_the_loss_scale_is_taken_out_of_the_norms_only(bad):
    grads = [torch.tensor([6.0, 8.0]), torch.tensor([bad]), None]
    monitor = watch(*grads)
    stats = measured(monitor, inverse_scale=1 / 2)
    assert stats.norms[[0, 2]].tolist() == [5.0, ABSENT]
    np.testing.assert_allclose(stats.norms[1], bad / 2)
    np.testing.assert_allclose(stats.global_norm, math.hypot(5.0, bad / 2))
    assert monitor.params[0].grad.tolist() == [6.0, 8.0]


@LAW
@given(gradient_lists())
def test_measuring_writes_nothing(grads):
    monitor = watch(*grads)
    before = [None if grad is None else grad.clone() for grad in grads]
    versions = [None if grad is None else grad._version for grad in grads]
    measured(monitor)
    for param, grad, value, version in zip(monitor.params, grads, before, versions, strict=True):
        assert param.grad is grad
        assert grad is None or (torch.equal(grad, value) and grad._version == version)


def test_a_healthy_step_is_one_pass_whatever_the_number_of_parameters():
    """The number of calls is that of one parameter, and no number is fetched from a tensor on its own."""
    counts = []
    for num_parameters in (1, 50):
        monitor = watch(*[torch.ones(2)] * num_parameters)
        stats = StepStats(num_parameters)
        with CountCalls() as counter:
            monitor.measure(stats)
        assert not [call for call in counter.calls if "_local_scalar_dense" in call]
        counts.append(len(counter.calls))
    assert counts[0] == counts[1]


def test_one_buffer_of_measurements_is_used_for_every_step():
    monitor = watch(torch.ones(2))
    stats = StepStats(1)
    levels = stats.levels
    monitor.measure(stats)
    assert stats.levels is levels
    assert stats.norms.base is levels


def test_a_probe_samples_the_norms_of_the_weights():
    monitor = watch(torch.ones(4), torch.ones(9))
    stats = StepStats(2)
    assert np.isnan(stats.weight_norms).all()
    monitor.probe(stats)
    assert stats.weight_norms.tolist() == [2.0, 3.0]
    assert stats.sgd_reach == pytest.approx(math.sqrt(13))
    assert stats.bad_state == ()


def test_the_reach_of_an_update_is_known_for_sgd_only_and_not_for_zero_weights():
    stats = StepStats(1)
    watch(torch.ones(4), optimizer=torch.optim.Adam).probe(stats)
    assert stats.sgd_reach == math.inf
    monitor = watch(torch.ones(4))
    with torch.no_grad():
        monitor.params[0].zero_()
    monitor.probe(stats)
    assert stats.sgd_reach == math.inf


def test_a_probe_names_bad_parameters_and_buffers_wherever_they_are():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    foreign = nn.Parameter(torch.tensor([math.inf]))
    monitor = Monitor(model, torch.optim.SGD([*model[0].parameters(), foreign], lr=0.1), ["*"])
    monitor.probe(StepStats(3))
    with torch.no_grad():
        model[0].bias[0] = math.nan
        model[1].running_var[1] = math.inf
        model[2].weight[0, 0] = math.nan
    stats = StepStats(3)
    monitor.probe(stats)
    assert sorted(stats.bad_state) == ["0.bias", "1.running_var", "2.weight", "param_groups.0.2"]
    assert sorted(monitor.nonfinite_parameters()) == ["0.bias", "param_groups.0.2"]
