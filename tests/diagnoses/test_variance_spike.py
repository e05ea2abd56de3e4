"""variance_spike: a batch that poisons running statistics is passed over without a trace, a new level is taken in."""

import copy

import pytest
import torch
from feed import diagnose
from torch import nn

import gradguard


def told(growths, first=20):
    feed = diagnose("variance_spike")
    feed.repeat(first, 1.0, 1.0)
    steps = (
        {"variance_growth": growth, "grown_variance": "bn.running_var" if growth > 3 else ""} for growth in growths
    )
    return [found for fields in steps for found in feed.step(1.0, 1.0, **fields)]


def test_it_is_told_at_once_with_the_layer():
    (finding,) = told([1.0, 1.0, 1e4, 1.0])
    assert (finding.severity, finding.value, finding.parameters) == ("critical", 1e4, ("bn.running_var",))
    assert "10,000 times as large" in finding.message


@pytest.mark.parametrize(("growths", "first"), [([1.0, 9.9, 10.0], 20), ([1e4], 19)])
def test_growth_that_may_be_usual_and_the_first_steps_are_quiet(growths, first):
    assert told(growths, first) == []


class Run:
    """A small network with batch normalisation, whose inputs are dictated."""

    def __init__(self, policy=None):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.guard = gradguard.attach(self.model, self.optimizer, policy)
        self.inputs = torch.randn(400, 32, 4)

    def step(self, index, factor=1.0):
        self.optimizer.zero_grad()
        loss = (self.model(self.inputs[index] * factor) - self.inputs[index].sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.guard.observe(loss)
        self.optimizer.step()
        return [record.remedy for record in self.guard.last.interventions]


def test_a_batch_that_only_the_running_statistics_show_leaves_no_trace():
    run, clean = Run(), Run()
    for index in range(60):
        assert run.step(index, 1e4 if index == 40 else 1.0) == (["skip_step"] if index == 40 else [])
        if index != 40:
            clean.step(index)
    for mine, theirs in zip(run.model.state_dict().values(), clean.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_new_level_of_the_data_is_taken_in_after_four_steps():
    run = Run()
    done = [run.step(index, 1e3 if index >= 40 else 1.0) for index in range(80)]
    assert done[40:45] == [["skip_step"]] * 4 + [["rebaseline"]]
    assert done[45:] == [[]] * 35
    assert run.model[1].running_var.max() > 1e4


@pytest.mark.parametrize("write", ["load_state_dict", "fill_"])
def test_what_somebody_writes_into_the_statistics_is_no_spike(write):
    run = Run()
    for index in range(30):
        run.step(index)
    if write == "fill_":
        run.model[1].running_var.fill_(1e6)
    else:
        state = copy.deepcopy(run.model.state_dict())
        state["1.running_var"] *= 1e6
        run.model.load_state_dict(state)
    assert [run.step(index) for index in range(30, 40)] == [[]] * 10


def test_a_model_in_evaluation_mode_and_one_without_statistics_are_quiet():
    run = Run()
    run.model.eval()
    assert [run.step(index, 1e4 if index == 30 else 1.0) for index in range(29)] == [[]] * 29
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradguard.attach(model, optimizer) as guard:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        assert guard.last.findings == ()
