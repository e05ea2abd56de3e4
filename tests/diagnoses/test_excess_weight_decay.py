"""excess_weight_decay: weights that decay took away before anything was learnt, and nothing that only looks like it."""

import math

import numpy as np
import pytest
import torch
from feed import diagnose
from probed import activations
from torch import nn

import gradguard


def told(shares, norm=0.05, loss=1.0, **options):
    """Return (step, finding): weight norms are 1 for ten steps, then what is said."""
    feed = diagnose({"excess_weight_decay": options} if options else "excess_weight_decay")
    found = []
    for step, share in enumerate([0.0] * 10 + list(shares)):
        feed.stats.weight_norms[:] = 1.0 if step < 10 else norm
        value = None if loss is None else 1.0 if step < 10 else loss
        found += [(step, f) for f in feed.step(1.0, value, shrinkage=share, activations=activations())]
    return found


def test_it_is_told_once_with_what_is_left():
    ((step, finding),) = told([0.05] * 600)
    assert (step, finding.severity, finding.value, finding.threshold) == (10, "warn", 0.05, 0.01)
    assert finding.message.startswith("Weight decay takes 0.05 of the weights per step: 5% of them are left")


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.01, math.nan, math.inf])
def test_a_decay_that_is_usual_or_not_known_is_quiet(share):
    assert told([share] * 20) == []


@pytest.mark.parametrize("norm", [0.2, 1.0, 5.0, math.nan])
def test_weights_that_are_still_there_are_quiet(norm):
    assert told([0.05] * 20, norm=norm) == []


@pytest.mark.parametrize("loss", [0.5, None])
def test_a_run_that_learns_with_it_and_one_without_a_loss_are_quiet(loss):
    """Ridge regression wants its decay."""
    assert [finding for step, finding in told([0.05] * 20, loss=loss) if step > 15] == []


def test_it_is_told_again_when_it_has_doubled():
    assert [step for step, _ in told([0.0, 0.005, 0.011, 0.02, 0.023, 0.04, 0.05])] == [12, 14, 16]


def test_what_counts_is_an_option():
    assert len(told([1e-3] * 3, max_shrinkage=1e-4)) == 1
    assert len(told([0.05] * 3, norm=0.4, left=0.5)) == 1


def test_matrices_count_and_zeros_at_the_start_do_not():
    feed = diagnose("excess_weight_decay")
    feed.stats.weight_norms[:] = [0.0, 1.0, 1.0]
    feed.repeat(10, 1.0, 1.0)
    feed.stats.weight_norms[:] = [1.0, 0.01, 0.02]
    assert len(feed.step(1.0, 1.0, shrinkage=0.05, activations=activations())) == 1


def train(weight_decay, steps, optimizer=torch.optim.SGD, policy=None, **options):
    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    targets = (inputs[:, :1] > 0).long().squeeze(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    chosen = optimizer(model.parameters(), lr=0.1, weight_decay=weight_decay, **options)
    done = []
    with gradguard.attach(model, chosen, policy) as guard:
        for step in range(steps):
            chosen.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            guard.observe(loss)
            chosen.step()
            done += [(step, record.remedy) for record in guard.last.interventions if record.remedy != "notify"]
    return done, loss.item(), chosen.param_groups[0]["weight_decay"]


def test_a_real_run_is_started_again_with_a_usual_decay_and_learns():
    done, loss, weight_decay = train(1.0, 300)
    assert [remedy for _, remedy in done] == ["scale_weight_decay", "restart"]
    assert loss < 0.3 < math.log(2)
    assert weight_decay == 1.0  # what the user set stays underneath
    assert train(1.0, 300, policy="finetune")[1] > 0.6


@pytest.mark.parametrize("weight_decay", [0.0, 0.01, 0.05])
def test_strong_but_bearable_decay_is_left_alone(weight_decay):
    assert train(weight_decay, 200, momentum=0.0) == ([], *train(weight_decay, 200, momentum=0.0, policy="observe")[1:])
    assert np.isfinite(train(weight_decay, 5)[1])
