"""clip_value agrees with torch.nn.utils.clip_grad_value_."""

import copy
import math

import pytest
import reference
import torch
from aim import aim, grads_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import clip_grad_value_

from gradguard.contracts import REMEDIES


LAW = settings(max_examples=40, deadline=None, derandomize=True)
ClipValue = REMEDIES.get("clip_value")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@LAW
@given(st.integers(0, 2**16), st.sampled_from(DTYPES), st.sampled_from([0.01, 0.5, 2.0]))
def test_the_entries_are_those_of_torch(seed, dtype, max_value):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(), (3,), (0,), (2, 3)]
    grads = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    expected = []
    for grad in grads:
        param = torch.nn.Parameter(torch.zeros_like(grad))
        param.grad = copy.deepcopy(grad)
        clip_grad_value_([param], max_value)
        expected.append(param.grad)
    target = aim(*grads)
    ClipValue(max_value=max_value).apply(target, None, None)
    for left, right in zip(grads_of(target), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)
    total = math.hypot(*[reference.norm(grad) for grad in grads_of(target)])
    assert target.stats.global_norm == pytest.approx(total, rel=1e-6)
    assert target.stats.levels[0] == pytest.approx(total, rel=1e-6)


def test_real_and_imaginary_parts_are_clamped_apart():
    target = aim(torch.tensor([3.0 - 0.5j, 0.25 + 4.0j]))
    ClipValue(max_value=1.0).apply(target, None, None)
    assert target.params[0].grad.tolist() == [1.0 - 0.5j, 0.25 + 1.0j]


def test_entries_within_the_limit_are_no_change():
    target = aim(torch.tensor([0.5, -0.5]))
    assert ClipValue(max_value=1.0).apply(target, None, None) is None
    assert target.params[0].grad.tolist() == [0.5, -0.5]


def test_the_change_tells_the_norm_before_and_after():
    target = aim(torch.tensor([3.0, 4.0]))
    change = ClipValue(max_value=1.0).apply(target, None, None)
    assert change.before == {"global_norm": 5.0}
    assert change.after == {"global_norm": pytest.approx(math.sqrt(2)), "max_value": 1.0}


def test_only_the_rule_s_parameters_are_clamped():
    target = aim(torch.tensor([9.0]), torch.tensor([9.0]), None)
    ClipValue(max_value=1.0).apply(target, None, [1, 2])
    assert target.params[0].grad.tolist() == [9.0]
    assert target.params[1].grad.tolist() == [1.0]
    assert target.stats.norms.tolist() == [9.0, 1.0, -1.0]


def test_no_parameters_at_all_are_nothing_to_clamp():
    assert ClipValue(max_value=1.0).apply(aim(torch.tensor([9.0])), None, []) is None
    assert ClipValue(max_value=1.0).apply(aim(None), None, None) is None


def test_the_limit_is_on_gradients_without_their_loss_scale():
    target = aim(torch.tensor([3.0, 0.5]) * 1024, scale=1024.0)
    ClipValue(max_value=1.0).apply(target, None, None)
    assert target.params[0].grad.tolist() == [1024.0, 512.0]
    assert target.stats.global_norm == pytest.approx(math.hypot(1.0, 0.5))


def test_an_infinite_entry_becomes_the_limit_and_a_nan_stays_bad():
    target = aim(torch.tensor([math.inf, 0.5]), torch.tensor([math.nan, 9.0]))
    ClipValue(max_value=1.0).apply(target, None, None)
    assert target.params[0].grad.tolist() == [1.0, 0.5]
    assert math.isnan(target.params[1].grad[0])
    assert target.params[1].grad[1] == 1.0
    assert not target.stats.finite
    assert target.stats.nonfinite == {1: (1, 0)}


def test_repeated_entries_of_a_sparse_gradient_are_clamped_as_their_sum():
    grad = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 2]]), torch.tensor([3.0, -2.5, 8.0]), (4,), check_invariants=True
    )
    target = aim(torch.zeros(4))
    target.params[0].grad = grad
    target.stats.norms[0] = 8.0
    ClipValue(max_value=1.0).apply(target, None, None)
    assert target.params[0].grad.to_dense().tolist() == [0.5, 0.0, 1.0, 0.0]
