"""A cut of the learning rate lies on top of every schedule, is seen by nobody else, and survives a resume."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import gradguard


SCHEDULES = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=100, cycle_momentum=False),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 50),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "step": lambda o: lr_scheduler.StepLR(o, 4),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
}
CUT = gradguard.Policy.model_validate(
    {"rules": [{"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": 0.1}}]}]}
)
RECOVERING = gradguard.Policy.model_validate(
    {"rules": [{"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": 0.01, "recover_steps": 10}}]}]}
)


class Job:
    """One weight under SGD whose gradient is always 1: how far it moves is the learning rate that was used."""

    def __init__(self, schedule=SCHEDULES["lambda"], policy=CUT, optimizer=torch.optim.SGD, is_guarded=True):
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.model = nn.ParameterList([self.weight])
        self.optimizer = optimizer(self.model.parameters(), lr=1.0)
        self.scheduler = schedule(self.optimizer)
        self.guard = gradguard.attach(self.model, self.optimizer, policy) if is_guarded else None

    @property
    def rate(self):
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, is_bad=False):
        """Take one step and return the learning rate that it was really taken with."""
        before = self.weight.item()
        self.weight.grad = torch.full_like(self.weight, math.nan if is_bad else 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return before - self.weight.item()

    def checkpoint(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "guard": self.guard}
        return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}

    def resume(self, saved):
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        self.guard.load_state_dict(saved["guard"])


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_cut_is_neither_undone_nor_compounded_by_the_schedule(schedule):
    job, twin = Job(schedule), Job(schedule, is_guarded=False)
    for step in range(20):
        wanted = twin.rate
        assert job.rate == wanted
        used = job.step(is_bad=step == 3)
        twin.step()
        if step != 3:
            assert used == pytest.approx(wanted * (0.1 if step > 3 else 1.0))
    assert job.rate == twin.rate


def test_the_rate_that_is_used_is_on_record(tmp_path):
    job = Job(SCHEDULES["exponential"])
    job.step(), job.step(is_bad=True)
    cut = next(record for record in job.guard.records if record.kind == "intervention" and record.remedy == "scale_lr")
    assert cut.change.before["lr"] == pytest.approx(0.9)
    assert cut.change.after["lr"] == pytest.approx(0.09)
    job.step()
    assert job.guard.last.lr_factor == pytest.approx(0.1)


@pytest.mark.parametrize("policy", [CUT, RECOVERING], ids=["for good", "recovering"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_resumed_run_goes_on_with_the_cut_as_if_it_had_not_ended(schedule, policy):
    """Building a scheduler anew resets the learning rate; the guard's factor is its own."""
    job = Job(schedule, policy)
    for step in range(6):
        job.step(is_bad=step == 4)
    saved = job.checkpoint()
    wanted = [job.step() for _ in range(14)]
    resumed = Job(schedule, policy)
    resumed.resume(saved)
    assert [resumed.step() for _ in range(14)] == wanted
    assert resumed.rate == job.rate


def test_a_cut_acts_on_the_groups_that_are_there_now():
    """`load_state_dict` replaces the groups' dictionaries, and groups may be added."""
    job = Job()
    kept = job.optimizer.param_groups[0]
    job.step(is_bad=True)
    job.optimizer.load_state_dict(job.optimizer.state_dict())
    assert job.optimizer.param_groups[0] is not kept
    assert job.step() == pytest.approx(0.1)
    late = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    job.model.append(late)
    job.optimizer.add_param_group({"params": [late], "lr": 0.5})
    late.grad = torch.ones_like(late)
    job.weight.grad = torch.ones_like(job.weight)
    job.optimizer.step()
    assert late.item() == pytest.approx(-0.05)
    assert [group["lr"] for group in job.optimizer.param_groups] == [1.0, 0.5]
    assert [record.event for record in job.guard.records if record.kind == "event"] == [
        "attached",
        "parameters_changed",
    ]


def test_an_added_group_is_judged_as_well():
    job = Job()
    late = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    job.model.register_parameter("late", late)
    job.optimizer.add_param_group({"params": [late], "lr": 0.5})
    late.grad = torch.full_like(late, math.nan)
    job.weight.grad = torch.ones_like(job.weight)
    job.optimizer.step()
    assert job.guard.last.skipped
    assert job.guard.last.findings[0].parameters == ("late",)
