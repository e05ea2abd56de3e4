"""keep_clipping holds every gradient below a limit for its steps, and no longer."""

import copy
import math

import pytest
import torch
from aim import aim, finding_about, grads_of, remember
from torch.nn.utils import clip_grad_norm_

import gradguard
from gradguard.contracts import REMEDIES


KeepClipping = REMEDIES.get("keep_clipping")


def held(target):
    return target.effects["keep_clipping"]


def test_the_limit_clips_as_torch_does():
    grads = [torch.randn(3), torch.randn(2, 2) * 10, None]
    params = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads[:2]]
    for param, grad in zip(params, grads, strict=False):
        param.grad = copy.deepcopy(grad)
    clip_grad_norm_(params, 2.0)
    target = aim(*grads)
    KeepClipping(max_norm=2.0).apply(target, finding_about(), None)
    held(target).on_gradients(target, 0)
    torch.testing.assert_close(grads_of(target)[:2], [param.grad for param in params], rtol=3e-7, atol=0)
    assert target.stats.global_norm == pytest.approx(2.0)


def test_a_gradient_within_the_limit_is_left_alone():
    target = aim(torch.tensor([0.3, 0.4]))
    KeepClipping(max_norm=1.0).apply(target, finding_about(), None)
    held(target).on_gradients(target, 0)
    assert (target.params[0].grad.tolist(), target.clip_coef) == (pytest.approx([0.3, 0.4]), 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_is_not_spread(bad):
    target = aim(torch.tensor([30.0]), torch.tensor([bad]))
    KeepClipping(max_norm=1.0).apply(target, finding_about(), None)
    held(target).on_gradients(target, 0)
    assert target.params[0].grad.tolist() == [30.0]


@pytest.mark.parametrize("steps", [1, 5])
def test_the_limit_holds_for_its_steps_the_present_one_included(steps):
    target = aim(torch.ones(2))
    target.stats.step = 100
    change = KeepClipping(max_norm=1.0, steps=steps).apply(target, finding_about(), None)
    assert [held(target).goes_on(step) for step in range(101, 100 + steps + 2)] == [True] * (steps - 1) + [False] * 2
    assert change.after == {"max_norm": 1.0, "until_step": 100 + steps}


def test_a_second_limit_is_never_looser_and_holds_longer():
    target = aim(torch.ones(2))
    KeepClipping(max_norm=1.0, steps=10).apply(target, finding_about(), None)
    target.stats.step = 5
    change = KeepClipping(max_norm=3.0, steps=10).apply(target, finding_about(), None)
    assert (change.before["max_norm"], change.after["max_norm"], change.after["until_step"]) == (1.0, 1.0, 15)
    KeepClipping(max_norm=0.5, steps=1).apply(target, finding_about(), None)
    assert held(target).max_norm == 0.5
    assert held(target).until == 15


def test_a_limit_from_the_rolling_median_is_taken_once():
    target = aim(torch.tensor([30.0]))
    remember(target, [2.0, 2.0])
    KeepClipping(max_norm={"median_times": 3.0}).apply(target, finding_about(), None)
    remember(target, [500.0, 500.0])
    held(target).on_gradients(target, 1)
    assert float(target.params[0].grad) == pytest.approx(6.0)


def test_a_saved_limit_is_the_same_limit():
    target = aim(torch.tensor([30.0]))
    KeepClipping(max_norm=1.5, steps=7).apply(target, finding_about(), None)
    twin = KeepClipping.restore_effect(held(target).state_dict())
    assert twin.state_dict() == held(target).state_dict()
    twin.on_gradients(target, 3)
    assert float(target.params[0].grad) == pytest.approx(1.5)


def test_on_a_run_it_clips_the_steps_that_it_says_and_no_other():
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rule = {"when": {"stale_gradients": {"steps": 1}}, "do": {"keep_clipping": {"max_norm": 1.0, "steps": 3}}}
    coefs = []
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=[rule], sinks=[])) as guard:
        for step in range(10):
            if step != 4:
                optimizer.zero_grad()
            model(torch.full((1, 1), 2.0)).sum().backward()
            optimizer.step()
            coefs.append(guard.last.clip_coef)
    assert [step for step, coef in enumerate(coefs) if coef < 1.0] == [4, 5, 6]
    assert coefs[4:7] == pytest.approx([0.25, 0.5, 0.5], rel=1e-5)
