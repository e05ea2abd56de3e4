"""How much running variances grew since the last accepted step."""

import pytest
import torch
from torch import nn

from gradguard.evidence.stats import StepStats
from gradguard.model.variance_watch import VarianceWatch


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 5), nn.BatchNorm1d(5), nn.LayerNorm(5))


def look(watch):
    stats = StepStats(1)
    is_usual = watch.look(stats)
    assert is_usual == (stats.grown_variance == "") == (stats.variance_growth == 1.0)
    return stats.variance_growth, stats.grown_variance


def test_the_layer_that_grew_most_is_named_with_its_growth():
    model = network()
    watch = VarianceWatch(model)
    assert len(watch) == 2
    before = model[0].running_var.norm()
    model(100 * torch.randn(64, 3))
    growth, name = look(watch)
    assert name == "0.running_var"
    assert growth == pytest.approx(float(model[0].running_var.norm() / before))


def test_growth_counts_from_the_last_accepted_step():
    model = network()
    watch = VarianceWatch(model)
    model(100 * torch.randn(64, 3))
    assert look(watch)[0] > 100
    assert look(watch)[0] > 100
    watch.accept()
    assert look(watch) == (1.0, "")


def test_a_variance_of_nothing_counts_as_the_epsilon_of_the_layer():
    model = network()
    model[2].running_var.zero_()
    watch = VarianceWatch(model)
    model[2].running_var.data.fill_(1e-6)  # without a trace, as layers write
    assert look(watch) == (1.0, "")


def test_what_is_not_finite_is_for_others_to_tell():
    model = network()
    watch = VarianceWatch(model)
    model[0].running_var.data.fill_(torch.inf)
    assert look(watch) == (1.0, "")


def test_layers_that_were_added_are_looked_at_after_reading_again():
    model = network()
    watch = VarianceWatch(model)
    model.append(nn.BatchNorm1d(5))
    watch.read()
    assert len(watch) == 3
    assert watch.is_on_host()


def test_a_model_without_running_statistics_has_none():
    assert len(VarianceWatch(nn.Linear(2, 2))) == 0


def test_what_was_infinite_before_has_not_grown():
    model = network()
    watch = VarianceWatch(model)
    model[0].running_var.data.fill_(torch.inf)
    watch.look(StepStats(1))
    watch.accept()
    assert look(watch) == (1.0, "")
