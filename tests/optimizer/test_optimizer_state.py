"""What optimizers remember can be damped and forgotten, for every one that torch ships."""

import copy
import inspect

import pytest
import torch
from torch import nn

from gradguard.optimizer.optimizer_state import (
    FIRST_MOMENTS,
    damp_first_moments,
    reset_entries,
    reset_state,
    rewarm_steps,
)


EVERY = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and name != "Optimizer"
)
MOMENTS = {"SGD", "RMSprop", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "Muon"}
every_optimizer = pytest.mark.parametrize("name", EVERY)
every_optimizer_by_parameter = pytest.mark.parametrize("name", [name for name in EVERY if name != "LBFGS"])


class Job:
    """Two weights and an optimizer; the second weight stands for one that nobody selects."""

    def __init__(self, name, **more):
        torch.manual_seed(0)
        self.weights = [nn.Parameter(torch.randn(3, 4)) for _ in range(2)]
        self.is_sparse = name == "SparseAdam"
        momentum = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
        self.optimizer = getattr(torch.optim, name)(self.weights, lr=0.05, **momentum, **more)

    def evaluate(self):
        self.optimizer.zero_grad()
        loss = sum((weight - 0.1 * index).square().sum() for index, weight in enumerate(self.weights))
        loss.backward()
        if self.is_sparse:
            for weight in self.weights:
                weight.grad = weight.grad.to_sparse(1)
        return loss

    def train(self, steps=3):
        for _ in range(steps):
            self.optimizer.step(self.evaluate)


def tensors(state):
    return {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}


@every_optimizer
def test_first_moments_are_multiplied_and_nothing_else_changes(name):
    job = Job(name)
    job.train()
    first, second = job.weights
    before = [tensors(job.optimizer.state[weight]) for weight in job.weights]
    assert damp_first_moments(job.optimizer, [first], 0.25) == int(name in MOMENTS)
    after = [tensors(job.optimizer.state[weight]) for weight in (first, second)]
    for key, value in before[0].items():
        assert torch.equal(after[0][key], value * 0.25 if key in FIRST_MOMENTS else value), key
    assert all(torch.equal(after[1][key], value) for key, value in before[1].items())
    job.train()


@every_optimizer
def test_after_a_reset_the_optimizer_goes_on_as_one_that_never_knew_the_parameters(name):
    job = Job(name)
    job.train()
    fresh = Job(name)
    with torch.no_grad():
        for ours, theirs in zip(fresh.weights, job.weights, strict=True):
            ours.copy_(theirs)
    assert reset_state(job.optimizer, job.weights) == (1 if name == "LBFGS" else 2)
    job.train()
    fresh.train()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(fresh.weights, job.weights, strict=True))


@every_optimizer_by_parameter
def test_a_reset_of_one_parameter_leaves_the_others_alone(name):
    job = Job(name)
    job.train()
    before = tensors(job.optimizer.state[job.weights[1]])
    reset_state(job.optimizer, job.weights[:1])
    assert all(torch.equal(job.optimizer.state[job.weights[1]][key], value) for key, value in before.items())


def test_adagrad_starts_again_from_its_initial_value():
    job = Job("Adagrad", initial_accumulator_value=0.7)
    job.train()
    reset_state(job.optimizer, job.weights)
    state = job.optimizer.state[job.weights[0]]
    assert (float(state["step"]), state["sum"].unique().tolist()) == (0.0, pytest.approx([0.7]))


@every_optimizer_by_parameter
def test_some_entries_are_forgotten_and_training_stays_finite(name):
    job = Job(name)
    job.train()
    weight = job.weights[0]
    where = torch.zeros(3, 4, dtype=torch.bool)
    where[1] = True
    before = tensors(job.optimizer.state[weight])
    reset_entries(job.optimizer, weight, where)
    for key, value in tensors(job.optimizer.state[weight]).items():
        if value.shape != weight.shape:
            assert torch.equal(value, before[key]), key
            continue
        assert torch.equal(value[~where], before[key][~where]), key
        if key in ("exp_avg", "momentum_buffer", "prev"):
            assert value[where].unique().tolist() == [0.0]
        elif key == "ax":
            assert torch.equal(value[where], weight[where])
        elif key == "step_size":
            assert value[where].unique().tolist() == pytest.approx([0.05])
        else:
            assert value[where].unique().tolist() == pytest.approx([float(before[key][~where].mean())]), key
    old = weight.detach().clone()
    job.train(1)
    moved = (weight.detach() - old).abs()
    assert bool(moved.isfinite().all())
    if name != "Rprop":  # whose step sizes are those of the start
        assert float(moved[1].max()) < 4 * float(moved[[0, 2]].max())


def test_all_entries_forgotten_is_a_reset():
    job = Job("Adam")
    job.train()
    reset_entries(job.optimizer, job.weights[0], torch.ones(3, 4, dtype=torch.bool))
    assert job.weights[0] not in job.optimizer.state


def test_no_entry_forgotten_changes_nothing():
    job = Job("Adam")
    job.train()
    before = copy.deepcopy(tensors(job.optimizer.state[job.weights[0]]))
    reset_entries(job.optimizer, job.weights[0], torch.zeros(3, 4, dtype=torch.bool))
    assert all(torch.equal(job.optimizer.state[job.weights[0]][key], value) for key, value in before.items())


@pytest.mark.parametrize(
    ("name", "more", "steps"),
    [
        ("Adam", {"betas": (0.9, 0.999)}, 5000),
        ("AdamW", {"betas": (0.9, 0.95)}, 100),
        ("Adam", {"betas": (0.9, 0.0)}, 5),
        ("RMSprop", {"alpha": 0.99}, 500),
        ("Adadelta", {"rho": 0.9}, 50),
        ("SGD", {}, 100),
    ],
)
def test_a_rewarm_takes_five_times_the_memory_of_the_second_moment(name, more, steps):
    job = Job(name, **more)
    assert rewarm_steps(job.optimizer, job.weights) == steps


def test_the_group_with_the_longest_memory_counts():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([{"params": [first]}, {"params": [second], "betas": (0.9, 0.99)}], betas=(0.9, 0.9))
    assert rewarm_steps(optimizer, [first]) == 50
    assert rewarm_steps(optimizer, [first, second]) == 500
