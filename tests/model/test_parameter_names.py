"""Which parameters are watched, in which order, and what they are called."""

import math

import pytest
import reference
import torch
from torch import nn

from gradguard.evidence.stats import StepStats
from gradguard.gradients.monitor import Monitor
from gradguard.model.parameter_names import clean_name, parameter_names, wrappers_of


def measured(monitor):
    stats = StepStats(len(monitor.table))
    monitor.measure(stats)
    return stats


def test_tied_weights_are_counted_once_and_have_their_first_name():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model(torch.ones(1, 3)).sum().backward()
    monitor = Monitor(model, torch.optim.SGD(model.parameters(), lr=0.1), ["*"])
    assert monitor.table.names == ["0.weight"]
    assert measured(monitor).global_norm == pytest.approx(reference.norm(model[0].weight.grad), rel=1e-6)


def test_parameters_are_in_the_order_of_the_optimizer_with_their_facts():
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 1).to(torch.float64)})
    foreign = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD(
        [{"params": [*model["b"].parameters()]}, {"params": [model["a"].weight, foreign], "lr": 0.2}], lr=0.1
    )
    table = Monitor(model, optimizer, ["*"]).table
    assert table.names == ["b.weight", "b.bias", "a.weight", "param_groups.1.1"]
    assert table.shapes == [(1, 2), (1,), (2, 3), ()]
    assert table.dtypes == ["float64", "float64", "float32", "float32"]
    assert table.groups == [0, 0, 1, 1]
    assert table.is_matrix.tolist() == [True, False, True, False]


def test_only_the_selected_parameters_are_measured():
    model = nn.Sequential(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    model[0].bias.grad.fill_(math.nan)
    monitor = Monitor(model, torch.optim.SGD(model.parameters(), lr=0.1), ["*", "!*.bias"])
    assert monitor.table.names == ["0.weight"]
    assert measured(monitor).finite


def test_added_param_groups_are_noticed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    monitor = Monitor(model, optimizer, ["*"])
    assert not monitor.has_new_layout()
    optimizer.add_param_group({"params": [*model[1].parameters()]})
    assert monitor.has_new_layout()
    monitor.read_layout()
    assert not monitor.has_new_layout()
    assert monitor.table.names[2:] == ["1.weight", "1.bias"]


class Inner(nn.Module):
    """A model that calls one of its own parts `module`, as wrappers do."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(1, 1, bias=False)
        self.weight = nn.Parameter(torch.ones(1))


def test_a_wrapper_leaves_no_trace_in_the_names():
    assert list(parameter_names(nn.DataParallel(nn.Linear(1, 1))).values()) == ["weight", "bias"]
    assert wrappers_of(nn.DataParallel(nn.DataParallel(nn.Linear(1, 1)))) == ["module", "module"]
    assert clean_name("blocks._orig_mod.0.weight", []) == "blocks.0.weight"


def test_a_part_that_is_named_like_a_wrapper_keeps_its_name():
    names = list(parameter_names(Inner()).values())
    assert list(parameter_names(nn.DataParallel(Inner())).values()) == names == ["weight", "module.weight"]
