"""The statistics that one looks at by hand agree with numpy in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gradguard


def with_gradients(*grads):
    model = nn.ParameterList([nn.Parameter(torch.zeros_like(grad)) for grad in grads])
    for param, grad in zip(model, grads, strict=True):
        param.grad = grad
    return model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_statistic_is_that_of_numpy(dtype):
    grads = [torch.randn(5, 3).relu().to(dtype), torch.tensor(-2.0, dtype=dtype), torch.zeros(4, dtype=dtype)]
    found = gradguard.gradient_statistics(with_gradients(*grads))
    values = [grad.double().numpy() for grad in grads]
    assert found.names == ["0", "1", "2"]
    np.testing.assert_allclose(found.mean, [value.mean() for value in values], atol=1e-7)
    np.testing.assert_allclose(found.std, [value.std() for value in values], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.max, [value.max() for value in values])
    np.testing.assert_allclose(found.min, [value.min() for value in values])
    np.testing.assert_allclose(found.zero_ratio, [(value == 0).mean() for value in values])
    np.testing.assert_allclose(found.norm, [np.linalg.norm(value) for value in values], rtol=1e-6)


def test_a_spread_that_is_small_beside_the_mean_is_not_lost():
    grad = 1.0 + 1e-4 * torch.randn(1000)
    found = gradguard.gradient_statistics(with_gradients(grad))
    assert found.std[0] == pytest.approx(grad.double().numpy().std(), rel=0.01)


def test_a_gradient_that_is_the_same_everywhere_has_no_spread():
    found = gradguard.gradient_statistics(with_gradients(torch.full((1000,), 0.1)))
    assert found.std[0] < 1e-6


def test_parameters_without_a_gradient_are_left_out():
    model = nn.Linear(2, 2)
    assert gradguard.gradient_statistics(model).names == []
    model.weight.grad = torch.ones(2, 2)
    assert gradguard.gradient_statistics(model).names == ["weight"]


def test_bad_and_missing_entries_are_no_error():
    found = gradguard.gradient_statistics(with_gradients(torch.tensor([math.nan, 1.0]), torch.zeros(0)))
    assert math.isnan(found.mean[0])
    assert found.norm[1] == 0.0


def test_a_complex_gradient_is_a_pair_of_reals():
    found = gradguard.gradient_statistics(with_gradients(torch.tensor([3.0 + 1.0j])))
    assert (found.max[0], found.min[0], found.mean[0]) == (3.0, 1.0, 2.0)
