"""clip_norm agrees with torch.nn.utils.clip_grad_norm_, for all gradients together and for each on its own."""

import copy
import math

import pytest
import reference
import torch
from aim import aim, aim_at, finding_about, grads_of, remember
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import clip_grad_norm_

import gradguard
from gradguard.contracts import REMEDIES


LAW = settings(max_examples=40, deadline=None, derandomize=True)
ClipNorm = REMEDIES.get("clip_norm")
SHAPES = [(), (3,), (0,), (2, 3)]


@st.composite
def gradient_lists(draw, dtypes=(torch.float32, torch.float64, torch.complex64)):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from(dtypes))
    grads = []
    for _ in range(draw(st.integers(1, 4))):
        values = torch.randn(draw(st.sampled_from(SHAPES)), generator=generator, dtype=torch.float64)
        grads.append(None if draw(st.integers(0, 4)) == 0 else (values * draw(st.sampled_from([0.1, 1, 30]))).to(dtype))
    return grads


def parameters_with(grads):
    params = []
    for grad in grads:
        param = torch.nn.Parameter(torch.zeros(2) if grad is None else torch.zeros_like(grad))
        param.grad = copy.deepcopy(grad)
        params.append(param)
    return params


def assert_close(found, expected, rtol=3e-7):
    """The norms are float32, so factors may differ by two units in the last place of it."""
    assert [grad is None for grad in found] == [grad is None for grad in expected]
    for left, right in zip(found, expected, strict=True):
        if left is not None:
            torch.testing.assert_close(left, right, rtol=rtol, atol=0)


@LAW
@given(gradient_lists(), st.sampled_from([0.01, 1.0, 10.0, 1e3]))
def test_the_global_clip_is_that_of_torch(grads, max_norm):
    params = parameters_with(grads)
    clip_grad_norm_(params, max_norm)
    target = aim(*grads)
    ClipNorm(max_norm=max_norm).apply(target, None, None)
    assert_close(grads_of(target), [param.grad for param in params])


@LAW
@given(gradient_lists(), st.sampled_from([0.01, 1.0, 10.0]))
def test_the_clip_of_each_parameter_is_that_of_torch(grads, max_norm):
    params = parameters_with(grads)
    for param in params:
        clip_grad_norm_([param], max_norm)
    target = aim(*grads)
    ClipNorm(max_norm=max_norm, scope="per_parameter").apply(target, None, None)
    assert_close(grads_of(target), [param.grad for param in params])


@LAW
@given(gradient_lists((torch.float16, torch.bfloat16)), st.sampled_from([0.1, 1.0]))
def test_half_precision_is_scaled_by_the_factor_of_the_wide_norm(grads, max_norm):
    norm = math.hypot(*[reference.norm(grad) for grad in grads if grad is not None])
    factor = reference.clip_coefficient(norm, max_norm)
    target = aim(*grads)
    ClipNorm(max_norm=max_norm).apply(target, None, None)
    expected = [None if grad is None else (grad.float() * factor).to(grad.dtype) for grad in grads]
    assert_close(grads_of(target), expected, rtol=1e-2)


@LAW
@given(gradient_lists(), st.sampled_from([0.01, 1.0, 10.0]), st.sampled_from(["global", "per_parameter"]))
def test_what_is_noted_is_what_is_there(grads, max_norm, scope):
    target = aim(*grads)
    ClipNorm(max_norm=max_norm, scope=scope).apply(target, None, None)
    stats = target.stats
    for row, grad in enumerate(grads_of(target)):
        assert stats.norms[row] == (-1.0 if grad is None else pytest.approx(reference.norm(grad), rel=1e-5, abs=1e-12))
    total = math.hypot(*[reference.norm(grad) for grad in grads_of(target) if grad is not None])
    assert stats.global_norm == pytest.approx(total, rel=1e-5)
    assert stats.levels[0] == pytest.approx(total, rel=1e-5)


def test_a_gradient_within_the_limit_is_left_to_the_last_bit():
    target = aim(torch.tensor([0.3, 0.4]))
    version = target.params[0].grad._version
    assert ClipNorm(max_norm=1.0).apply(target, None, None) is None
    assert ClipNorm(max_norm=1.0, scope="per_parameter").apply(target, None, None) is None
    assert (target.params[0].grad._version, target.clip_coef) == (version, 1.0)


def test_the_change_says_what_it_was_and_what_it_is():
    target = aim(torch.tensor([3.0, 4.0]))
    change = ClipNorm(max_norm=1.0).apply(target, None, None)
    assert change.before == {"norm": pytest.approx(5.0)}
    assert change.after["norm"] == pytest.approx(1.0)
    assert change.after["max_norm"] == 1.0
    assert target.clip_coef == pytest.approx(0.2)
    assert change.summary == "gradient norm 5 -> 1"


@pytest.mark.parametrize("scope", ["global", "per_parameter"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_is_never_spread_to_the_others(bad, scope):
    target = aim(torch.tensor([3.0, 4.0]), torch.tensor([bad, 1.0]))
    ClipNorm(max_norm=1.0, scope=scope).apply(target, None, None)
    assert torch.isfinite(target.params[0].grad).all()
    assert target.params[1].grad[1] == 1.0


@pytest.mark.parametrize("scope", ["global", "per_parameter"])
@pytest.mark.parametrize("num_entries", [4, 10_000])
def test_a_norm_that_overflowed_is_clipped_rightly(scope, num_entries):
    """10,000 entries of 1e38 have norm 1e40, which float32 cannot hold."""
    target = aim(torch.full((num_entries,), 1e38), torch.ones(2))
    change = ClipNorm(max_norm=1.0, scope=scope).apply(target, None, None)
    assert change.before["norm"] == pytest.approx(1e38 * math.sqrt(num_entries))
    assert reference.norm(target.params[0].grad) == pytest.approx(1.0, rel=0.01)
    assert target.stats.global_norm < 3.0


def test_several_norms_that_overflowed_together_are_clipped_rightly():
    target = aim(*[torch.full((400,), 1e38)] * 3, torch.ones(2))
    ClipNorm(max_norm=1.0, scope="per_parameter").apply(target, None, None)
    for param in target.params[:3]:
        assert reference.norm(param.grad) == pytest.approx(1.0, rel=0.01)


def test_some_parameters_that_overflowed_are_clipped_rightly_together():
    target = aim(torch.full((400,), 1e38), torch.full((400,), 1e38), torch.ones(2))
    ClipNorm(max_norm=1.0, scope="global").apply(target, None, [0, 1])
    assert math.hypot(*[reference.norm(param.grad) for param in target.params[:2]]) == pytest.approx(1.0, rel=0.01)
    assert target.params[2].grad.tolist() == [1.0, 1.0]


def test_only_the_rule_s_parameters_are_clipped_by_their_own_norm():
    target = aim(torch.tensor([3.0, 4.0]), torch.tensor([100.0]), None)
    ClipNorm(max_norm=1.0).apply(target, None, [0, 2])
    assert reference.norm(target.params[0].grad) == pytest.approx(1.0, rel=1e-6)
    assert target.params[1].grad.tolist() == [100.0]
    assert target.clip_coef == 1.0


def test_no_parameters_at_all_are_no_reason_to_clip():
    target = aim(torch.tensor([100.0]))
    assert ClipNorm(max_norm=1.0).apply(target, None, []) is None
    assert aim(None).stats.global_norm == 0.0
    assert ClipNorm(max_norm=1.0).apply(aim(None), None, None) is None


def test_a_finding_about_parameters_clips_each_of_these():
    target = aim(torch.tensor([30.0]), torch.tensor([40.0]), torch.tensor([50.0]))
    change = ClipNorm(max_norm=1.0).apply(target, finding_about(0, 1), [0, 1])
    assert [float(grad) for grad in grads_of(target)] == pytest.approx([1.0, 1.0, 50.0])
    assert change.after["parameters"] == 2


def test_a_finding_about_the_whole_clips_all_together():
    target = aim(torch.tensor([30.0]), torch.tensor([40.0]))
    ClipNorm(max_norm=1.0).apply(target, finding_about(), None)
    assert [float(grad) for grad in grads_of(target)] == pytest.approx([0.6, 0.8])


def test_a_limit_may_be_a_multiple_of_the_rolling_median():
    target = aim(torch.tensor([30.0]), torch.tensor([40.0]))
    remember(target, [2.0, 1.5, 1.0])
    ClipNorm(max_norm={"median_times": 3.0}).apply(target, finding_about(), None)
    assert target.stats.global_norm == pytest.approx(6.0)


def test_each_parameter_has_its_own_rolling_median():
    target = aim(torch.tensor([30.0]), torch.tensor([40.0]))
    remember(target, [2.0, 1.5, 1.0])
    ClipNorm(max_norm={"median_times": 2.0}, scope="per_parameter").apply(target, finding_about(), None)
    assert [float(grad) for grad in grads_of(target)] == pytest.approx([3.0, 2.0])


@pytest.mark.parametrize("is_known", [False, True], ids=["no median", "not against the median"])
def test_without_a_median_to_go_by_the_fallback_is_the_limit(is_known):
    target = aim(torch.tensor([30.0]), torch.tensor([40.0]))
    remember(target, [2.0, 1.5, 1.0] if is_known else [math.nan] * 3)
    ClipNorm(max_norm={"median_times": 3.0, "fallback": 0.5}).apply(
        target, finding_about(is_against_median=False), None
    )
    assert target.stats.global_norm == pytest.approx(0.5)


def test_with_sgd_the_fallback_is_a_small_share_of_the_weights():
    target = aim(torch.tensor([30.0]), torch.tensor([40.0]))
    remember(target, [math.nan] * 3)
    target.stats.sgd_reach, target.stats.lr = 10.0, 0.1
    ClipNorm(max_norm={"median_times": 3.0}).apply(target, finding_about(is_against_median=False), None)
    assert target.stats.global_norm * 0.1 == pytest.approx(0.05 * 10.0)


def test_the_limit_is_on_gradients_without_their_loss_scale():
    target = aim(torch.tensor([3.0, 4.0]) * 1024, scale=1024.0)
    ClipNorm(max_norm=1.0).apply(target, None, None)
    assert reference.norm(target.params[0].grad) == pytest.approx(1024.0, rel=1e-6)
    assert target.stats.global_norm == pytest.approx(1.0)


@pytest.mark.parametrize("scope", ["global", "per_parameter"])
def test_repeated_entries_of_a_sparse_gradient_count_together(scope):
    grad = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 2]]), torch.tensor([3.0, 3.0, 8.0]), (4,), check_invariants=True
    )
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(4))])
    model[0].grad = grad
    target = aim_at(model, torch.optim.SparseAdam(model.parameters(), lr=0.1))
    ClipNorm(max_norm=1.0, scope=scope).apply(target, None, None)
    assert target.params[0].grad.to_dense().tolist() == pytest.approx([0.6, 0.0, 0.8, 0.0])


@pytest.mark.parametrize("fused", [True, False])
def test_of_several_limits_of_every_step_the_smallest_holds(fused):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    rules = [
        {"name": name, "when": "always", "do": {"clip_norm": {"max_norm": limit}}}
        for name, limit in (("loose", 2.0), ("tight", 0.5), ("last", 1.0))
    ]
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=rules, sinks=[])) as guard:
        model(torch.full((4, 3), 10.0)).sum().backward()
        optimizer.step()
        assert float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])) == pytest.approx(
            0.5, rel=1e-4
        )
        assert guard.last.clip_coef * guard.last.global_norm == pytest.approx(0.5, rel=1e-4)
