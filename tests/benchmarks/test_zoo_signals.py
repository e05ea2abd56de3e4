"""What the recorder hands on, and how far the statistics went, against numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_signals import layer, signals
from torch import nn

from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.extremes import STATISTICS, Extremes
from benchmarks.zoo.jury import Jury
from benchmarks.zoo.recorder import EPOCH, Recorder
from benchmarks.zoo.rivals import RIVALS
from benchmarks.zoo.train import train


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
        model[0].bias.zero_()
    return model


def record(model, optimizer, count, accuracies=None):
    heard = []
    recorder = Recorder(model, optimizer, heard.append, accuracies)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).square().mean()
        loss.backward()
        recorder.observe(loss)
        optimizer.step()
    recorder.close()
    return heard


def test_a_step_is_recorded_as_it_was():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    (seen,) = record(model, optimizer, 1)
    gradients = [p.grad for p in model.parameters()]
    assert (seen.step, seen.lr) == (0, 0.5)
    assert seen.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert seen.is_matrix.tolist() == [True, False, True, False]
    np.testing.assert_allclose(seen.gradient_norms, [float(g.norm()) for g in gradients], rtol=1e-6)
    np.testing.assert_allclose(seen.gradient_means, [float(g.abs().mean()) for g in gradients], rtol=1e-6)
    np.testing.assert_allclose(seen.update_norms, 0.5 * seen.gradient_norms, rtol=1e-5)
    assert seen.weight_norms[0] == pytest.approx(2.0)  # before the step
    assert seen.details.weight_means[0] == pytest.approx(4 / 6)
    assert seen.details.negative_shares[0] == pytest.approx(2 / 6)
    assert seen.details.zero_shares[0] >= 2 / 6  # the third unit is dead
    assert np.isinf(seen.details.change).all()
    assert (seen.details.input_mean, seen.details.input_max) == (2.5, 4.0)
    (relu,) = seen.details.activations
    assert (relu.name, relu.kind, relu.num_rows) == ("1", "relu", 2)
    assert relu.activity.tolist() == [1.0, 1.0, 0.0]
    assert relu.not_positive == relu.near_zero == pytest.approx(1 / 3)
    assert relu.far_input == pytest.approx(1 / 6)  # -7 of 1, 3, 2, 4, -3, -7


@pytest.mark.parametrize(
    ("activation", "kind", "inside", "flat"),
    [(nn.Tanh(), "tanh", [1.0, 0.5], 0.5), (nn.Sigmoid(), "sigmoid", [1.0, 0.5], 0.5), (nn.GELU(), "other", [1, 1], 0)],
)
def test_bounded_activations(activation, kind, inside, flat):
    model = nn.Sequential(activation, nn.Linear(2, 1))
    heard = []
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), 0.1), heard.append)
    model(torch.tensor([[0.0, 20.0], [6.0, 0.0]])).sum().backward()
    recorder._optimizer.step()
    (seen,) = heard[0].details.activations
    assert (seen.kind, seen.inside.tolist()) == (kind, inside)
    assert (seen.flat, seen.far_input) == (pytest.approx(flat), 0.5)
    recorder.close()


def test_details_are_sparse_and_accuracies_come_once_an_epoch():
    model = network()
    heard = record(model, torch.optim.SGD(model.parameters(), 0.0), EPOCH + 1, lambda: (0.9, 0.8))
    assert [s.step for s in heard if s.details is not None] == [*range(10), 10, 20]
    assert [(s.step, s.accuracy) for s in heard if s.accuracy is not None] == [(EPOCH - 1, (0.9, 0.8))]
    assert [s.step for s in heard if s.zero_share is not None] == [EPOCH - 1]
    assert (heard[1].details.change == 0).all()  # nothing moves at a rate of 0


def test_what_the_optimizer_was_not_given_is_seen_to_stand_still():
    model = network()
    (seen,) = record(model, torch.optim.SGD(model[2].parameters(), 0.1), 1)
    assert seen.has_gradient.all()
    assert (seen.update_norms > 0).tolist() == [False, False, True, True]


def test_what_is_frozen_is_not_looked_at():
    model = network()
    model[0].requires_grad_(False)
    (seen,) = record(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    assert seen.names == ("2.weight", "2.bias")


def test_of_several_optimizers_each_has_its_own_parameters_also_those_that_join():
    model = network()
    optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
    heard = []
    recorder = Recorder(model, optimizer, heard.append, is_alone=False)
    for step in range(2):
        if step == 1:
            optimizer.add_param_group({"params": model[0].parameters()})
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
    assert [len(s.names) for s in heard] == [2, 4]
    recorder.close()


def test_a_closed_recorder_leaves_no_hook():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    record(model, optimizer, 1)
    assert not any(module._forward_hooks for module in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("id", ["H03", "H14", "H30", "H42", "H44", "F15"])
def test_being_judged_changes_not_a_bit(id):
    setup = replace(ZOO[id], steps=EPOCH + 3)
    jury = Jury(setup.steps, 0)
    assert train(setup, 0, jury=jury).digest == train(setup, 0).digest
    assert set(jury.verdicts()) == set(RIVALS)
    assert jury.extremes() or id == "F15"


def test_alarms_before_the_onset_are_told_from_later_ones():
    jury = Jury(30, onset=15)
    seat = jury.seat()
    for step in range(30):
        seat(signals(step, lr=0.1 if step in (0, 21) else 0.001))
    (alarm,) = jury.verdicts()["UMLAUT, inputs and rates"]
    assert (alarm.name, alarm.first_step, alarm.first_since, alarm.count) == ("HighLearningRate", 0, 21, 2)


def extremes(count, make):
    own = Extremes()
    for step in range(count):
        own.update(make(step))
    return own.values


def test_a_norm_twenty_times_its_level_counts_when_it_comes_twice():
    def make(hot):
        return lambda step: signals(step, gradient_norms=[20.0 if step in hot else 1.0, 0, 0, 0])

    once, twice = extremes(60, make({40})), extremes(60, make({40, 42}))
    assert once["ratio"] == pytest.approx(1.0)
    assert twice["ratio"] == pytest.approx(20.0)
    assert twice["zscore"] == pytest.approx(math.log(20) / 0.1)  # a calm level has a deviation of 0.1 at least


def test_losses_against_their_start():
    def loss(step):
        return signals(step, loss=1.0 if step < 20 else 3.0 if step < 40 else 0.5)

    found = extremes(120, loss)
    assert found["loss"] == pytest.approx(3.0)
    assert found["best_loss"] == pytest.approx(0.5)
    assert found["scatter"] == 0.0
    noisy = extremes(100, lambda step: signals(step, loss=1.0 + 0.2 * (step % 2)))
    assert noisy["scatter"] == pytest.approx(0.2 / math.sqrt(2))  # the first losses have a median of 1


def test_updates_are_put_at_the_full_rate():
    """At the end the rate is a hundredth, and so are the updates: that is no small update."""

    def make(step):
        lr = 1e-2 if step < 30 else 1e-4
        return signals(step, update_norms=0.1 * lr, weight_norms=10.0, lr=lr)

    found = extremes(60, make)
    assert (found["large_update"], found["small_update"]) == pytest.approx((1e-4, 1e-4))


def test_layers_that_die_and_saturate_for_good():
    dead = layer(activity=np.array([0.0, 0.0, 0.0, 0.4]), num_rows=256)
    flat = layer("tanh", flat=0.8)
    found = extremes(60, lambda step: signals(step, dead, flat))
    assert (found["dead"], found["saturated"]) == (0.75, 0.8)
    for_a_while = extremes(60, lambda step: signals(step, *((dead, flat) if step < 20 else (layer(), layer("tanh")))))
    assert (for_a_while["dead"], for_a_while["saturated"]) == (0.0, 0.02)


def test_what_is_not_finite_is_left_out():
    found = extremes(60, lambda step: signals(step, loss=math.nan, gradient_norms=math.inf, update_norms=math.nan))
    assert set(found) <= {"dead", "output_spread", "input_std", "small_input_std"}
    assert all(map(math.isfinite, found.values()))


def test_every_statistic_names_its_side():
    assert STATISTICS["ratio"].is_beyond(21)
    assert not STATISTICS["ratio"].is_beyond(19)
    assert STATISTICS["first_to_last"].is_beyond(1e-3)
