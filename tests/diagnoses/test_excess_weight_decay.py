"""excess_weight_decay: told once, at what the optimizer is set to, and again when it got much worse."""

import math

import pytest
import torch
from feed import diagnose
from probed import activations
from torch import nn

import gradguard


def told(shares, **options):
    feed = diagnose({"excess_weight_decay": options} if options else "excess_weight_decay")
    steps = ({"shrinkage": share, "activations": activations()} for share in shares)  # sampled: at probes
    return [(step, found) for step, fields in enumerate(steps) for found in feed.step(1.0, 1.0, **fields)]


def test_it_is_told_once_with_the_time_in_which_half_is_gone():
    ((step, finding),) = told([0.05] * 600)
    assert (step, finding.severity, finding.value, finding.threshold) == (0, "warn", 0.05, 0.01)
    assert "half is gone after 14 steps" in finding.message
    assert 0.95**14 < 0.5 < 0.95**13


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.01, math.nan, math.inf])
def test_what_is_usual_or_not_known_is_quiet(share):
    assert told([share] * 5) == []


def test_it_is_told_again_when_it_has_doubled_and_after_a_warm_up():
    assert [step for step, _ in told([0.0, 0.005, 0.011, 0.02, 0.023, 0.04, 0.05])] == [2, 4, 6]


def test_the_share_that_counts_is_an_option():
    assert len(told([1e-3] * 3, max_shrinkage=1e-4)) == 1


def test_a_real_run_is_told_before_its_first_step_and_the_decay_becomes_a_usual_one():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    with gradguard.attach(model, optimizer) as guard:
        for step in range(60):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4)).square().mean()
            loss.backward()
            before = model.weight.detach().clone()
            gradient = model.weight.grad.clone()
            guard.observe(loss)
            optimizer.step()
            remedies = [record.remedy for record in guard.last.interventions]
            assert remedies == (["notify", "scale_weight_decay"] if step == 0 else [])
            torch.testing.assert_close(model.weight, before - 0.1 * (gradient + 0.001 * before))
        assert optimizer.param_groups[0]["weight_decay"] == 0.5
