"""zero_nonfinite agrees with torch.nan_to_num on the bad gradients and leaves the others to the last bit."""

import math

import pytest
import torch
from aim import aim, grads_of
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES


ZeroNonfinite = REMEDIES.get("zero_nonfinite")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bad_entries_become_zero_and_the_others_stay(dtype):
    grads = [
        torch.tensor([[math.nan, 1.0], [-math.inf, -2.0]], dtype=dtype),
        torch.tensor([3.0, 4.0], dtype=dtype),
        torch.tensor(math.inf, dtype=dtype),
    ]
    target = aim(*grads)
    change = ZeroNonfinite().apply(target, None, None)
    for found, grad in zip(grads_of(target), grads, strict=True):
        assert torch.equal(found, torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0))
    assert change.before == {"nonfinite_entries": 3}
    assert change.after["nonfinite_entries"] == 0
    assert "3 non-finite entries of 2 gradients" in change.summary


def test_what_is_noted_is_what_is_there():
    target = aim(torch.tensor([math.nan, 3.0]), torch.tensor([4.0]), None)
    ZeroNonfinite().apply(target, None, None)
    stats = target.stats
    assert (stats.finite, stats.nonfinite) == (True, {})
    assert stats.norms.tolist() == [3.0, 4.0, -1.0]
    assert (stats.global_norm, float(stats.levels[0])) == (5.0, 5.0)


def test_good_gradients_are_not_touched():
    target = aim(torch.tensor([math.nan]), torch.tensor([4.0]))
    version = target.params[1].grad._version
    ZeroNonfinite().apply(target, None, None)
    assert target.params[1].grad._version == version


def test_without_a_bad_entry_there_is_nothing_to_do():
    assert ZeroNonfinite().apply(aim(torch.ones(2), None), None, None) is None
    assert ZeroNonfinite().apply(aim(torch.full((4,), 1e30)), None, None) is None


def test_only_the_rule_s_parameters_are_cleaned_and_the_step_stays_bad():
    target = aim(torch.tensor([math.nan, 1.0]), torch.tensor([math.inf]))
    ZeroNonfinite().apply(target, None, [0])
    assert target.params[0].grad.tolist() == [0.0, 1.0]
    assert target.params[1].grad.tolist() == [math.inf]
    assert (target.stats.finite, target.stats.nonfinite) == (False, {1: (0, 1)})
    assert ZeroNonfinite().apply(target, None, []) is None


def test_parts_of_complex_entries_are_cleaned_apart():
    target = aim(torch.tensor([complex(math.nan, 2.0), complex(1.0, math.inf)]))
    ZeroNonfinite().apply(target, None, None)
    assert target.params[0].grad.tolist() == [2.0j, 1.0 + 0.0j]


def test_repeated_entries_of_a_sparse_gradient_are_cleaned_as_their_sum():
    """Infinity minus infinity is a NaN, which only shows when the entries are added up."""
    grad = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 2]]), torch.tensor([math.inf, -math.inf, 8.0]), (4,), check_invariants=True
    )
    target = aim(torch.zeros(4))
    target.params[0].grad = grad
    target.stats.nonfinite = {0: (1, 0)}
    ZeroNonfinite().apply(target, None, None)
    assert target.params[0].grad.to_dense().tolist() == [0.0, 0.0, 8.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_cleaned_steps_never_enter_the_rolling_statistics(bad):
    """Four steps in five are bad, and the usual norm stays that of the healthy ones."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    policy = gradguard.Policy(
        rules=[
            {"when": "nonfinite", "do": "zero_nonfinite"},
            {"name": "watch", "when": {"exploding_gradient": {"window": 10}}, "do": "notify"},
        ],
        sinks=[],
    )
    with gradguard.attach(model, optimizer, policy) as guard:
        medians = []
        for step in range(40):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            if step >= 15 and step % 5:
                model.weight.grad[0, 0] = bad
            optimizer.step()
            medians.append(float(guard._pipeline.judgement.windows[10].median[0]))
        assert medians == pytest.approx([8.0] * 40, rel=0.1)
