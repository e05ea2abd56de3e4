"""The other guards of the league, each against its formula."""

import math

import numpy as np
import pytest
import torch

from benchmarks.league.entrants import entrant
from benchmarks.league.tasks import TASKS


def gate_on(name, shape=(3, 4), optimizer=torch.optim.Adam):
    torch.manual_seed(0)
    model = torch.nn.Linear(shape[1], shape[0])
    return entrant(name).make(model, optimizer(model.parameters(), lr=0.1))


def give(gate, norm):
    """Give the gradients this global norm."""
    for param in gate.params:
        param.grad = torch.ones_like(param)
    total = math.sqrt(sum(param.numel() for param in gate.params))
    for param in gate.params:
        param.grad *= norm / total


def norm_of(gate):
    return float(torch.nn.utils.get_total_norm(gate.grads()))


def test_a_fixed_clip_counts_what_it_shortens():
    gate = gate_on("clip")
    for norm, after in ((0.5, 0.5), (3.0, 1.0)):
        give(gate, norm)
        assert gate.admits(torch.tensor(1.0))
        assert norm_of(gate) == pytest.approx(after, rel=1e-5)
    assert gate.interventions == 1


def test_autoclip_takes_the_percentile_of_all_norms():
    gate = gate_on("autoclip")
    norms = [1.0, 2.0, 0.5, 4.0]
    for norm in norms:
        give(gate, norm)
        gate.admits(torch.tensor(1.0))
    assert norm_of(gate) == pytest.approx(np.percentile(norms, 10), rel=1e-5)
    assert gate.interventions == 2  # the first norm is its own percentile, and 0.5 was the lowest but one part of it


def test_adagc_remembers_the_lowest_norm_and_lets_it_rise_slowly():
    gate = gate_on("adagc")
    for norm in [0.8, 0.4] + [0.6] * 98:
        give(gate, norm)
        gate.admits(torch.tensor(1.0))
    assert gate.interventions == 0
    levels = list(gate._levels)
    give(gate, 0.8)
    before = [float(grad.norm()) for grad in gate.grads()]
    gate.admits(torch.tensor(1.0))
    assert [float(grad.norm()) for grad in gate.grads()] == pytest.approx([1.05 * level for level in levels])
    assert levels == pytest.approx([norm / 2 for norm in before])
    assert gate._levels == pytest.approx([1.001 * level for level in levels])
    assert gate.interventions == 1


def test_agc_keeps_every_unit_below_a_hundredth_of_its_weights_and_the_head_as_it_is():
    training = TASKS["cnn"](0)
    gate = entrant("agc").make(training.model, training.optimizer)
    training.loss(next(training.batches)).backward()
    for param in gate.params:
        param.grad *= 100
    head = training.model.head.weight.grad.clone()
    gate.admits(torch.tensor(1.0))
    first = training.model.features[0].weight
    limits = 0.01 * first.flatten(1).norm(dim=1).clamp_min(1e-3)
    assert bool((first.grad.flatten(1).norm(dim=1) <= limits * (1 + 1e-5)).all())
    assert torch.equal(head, training.model.head.weight.grad)
    assert gate.interventions == 1


def test_zclip_is_the_package():
    pytest.importorskip("zclip")
    gate = gate_on("zclip")
    for norm in [0.5, 0.52] * 15 + [0.9]:
        give(gate, norm)
        gate.step(0, torch.tensor(1.0))
    assert norm_of(gate) < 0.6
    assert gate.interventions == 1


@pytest.mark.parametrize("loss", [1.0, 9.0])
def test_sigma_skip_waits_for_half_a_window_and_leaves_no_trace_of_a_finite_step(loss):
    gate = gate_on("sigma-skip")
    for step in range(70):
        give(gate, 1.0 + 0.01 * (step % 3))
        gate.step(step, torch.tensor(1.0 + 0.01 * (step % 2)))
    weights = [param.clone() for param in gate.params]
    moments = [gate.optimizer.state[param]["exp_avg"].clone() for param in gate.params]
    give(gate, 1.0 if loss == 9.0 else 500.0)
    gate.step(70, torch.tensor(loss))
    assert all(map(torch.equal, weights, gate.params))
    assert all(map(torch.equal, moments, [gate.optimizer.state[param]["exp_avg"] for param in gate.params]))
    assert gate.taken == set(range(70))
    assert gate.interventions == 1


def test_sigma_skip_lets_nan_through_as_multiplying_by_zero_does():
    gate = gate_on("sigma-skip")
    for step in range(70):
        give(gate, 1.0)
        gate.step(step, torch.tensor(1.0))
    give(gate, 1.0)
    gate.params[0].grad[0, 0] = math.nan
    gate.step(70, torch.tensor(1.0))
    assert 70 not in gate.taken
    assert int(gate.params[0].isnan().sum()) == 1
    assert int(gate.optimizer.state[gate.params[0]]["exp_avg"].isnan().sum()) == 1
