"""A fault of the guard's own is recorded, told once, and the training goes on as if nothing had been."""

import math

import pytest
import torch
from torch import nn

import gradguard
from gradguard.contracts import Diagnosis, Remedy, Sink
from gradguard.records import Finding


STEPS = 40


class BrokenDiagnosis(Diagnosis):
    name = "broken_diagnosis"

    def init(self, table, rows):
        return None

    def update(self, state, stats):
        if stats.step >= 3:
            raise ZeroDivisionError("of the plugin's")
        return state, None


class StillbornDiagnosis(BrokenDiagnosis):
    name = "stillborn_diagnosis"

    def init(self, table, rows):
        raise ZeroDivisionError("of the plugin's")


class NonsenseDiagnosis(BrokenDiagnosis):
    """Returns what is no finding at all."""

    name = "nonsense_diagnosis"

    def update(self, state, stats):
        return "nonsense"


class AnyStep(BrokenDiagnosis):
    """Finds something at every step."""

    name = "any_step"

    def update(self, state, stats):
        return state, Finding(diagnosis=self.name, step=stats.step, message="as always")


class BrokenRemedy(Remedy):
    name = "broken_remedy"
    kind = "optimizer"

    def apply(self, target, finding, rows):
        raise ZeroDivisionError("of the plugin's")


class BrokenRoutine(BrokenRemedy):
    name = "broken_routine"
    kind = "gradient"
    is_routine = True


class BrokenSink(Sink):
    name = "broken_sink"

    def emit(self, record):
        raise ZeroDivisionError("of the plugin's")

    def close(self):
        raise ZeroDivisionError("of the plugin's")


def broken_notify(finding):
    raise ZeroDivisionError("of the user's own")


def rules(when, *do):
    return {"rules": [{"name": "theirs", "when": when, "do": list(do)}]}


# What breaks -> (policy, what attach is given besides, the part that the record names)
FAULTS = {
    "diagnosis": (rules(BrokenDiagnosis(), "skip_step"), {}, "diagnosis 'broken_diagnosis' (now off)"),
    "nonsense": (rules(NonsenseDiagnosis(), "skip_step"), {}, "diagnosis 'nonsense_diagnosis' (now off)"),
    "remedy": (rules(AnyStep(), BrokenRemedy()), {}, "remedy 'broken_remedy'"),
    "routine": (rules("always", BrokenRoutine()), {}, "remedy 'broken_routine'"),
    "sink": ({"sinks": [BrokenSink(), "console"]}, {}, "sink 'broken_sink'"),
    "notify": (rules(AnyStep(), "notify"), {"notify": broken_notify}, "remedy 'notify'"),
}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, guard=None, steps=range(STEPS)):
    for step in steps:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(inputs) - 1.0).square().mean()
        loss.backward()
        if guard is not None:
            guard.observe(loss)
        optimizer.step()


@pytest.fixture
def expected(bits):
    model, optimizer = build()
    train(model, optimizer)
    return bits(model, optimizer)


def faults_of(records):
    return [record for record in records if record.kind == "event" and record.event == "internal_error"]


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_fails_the_training_ends_as_without_a_guard_and_it_is_told_once(name, expected, bits, lines, tmp_path):
    policy, options, part = FAULTS[name]
    model, optimizer = build()
    guard = gradguard.attach(model, optimizer, gradguard.Policy(**policy), run_dir=tmp_path / "run", **options)
    train(model, optimizer, guard)
    guard.close()
    assert bits(model, optimizer) == expected
    errors = [line for line in lines if line.startswith("ERROR|gradguard")]
    assert len(errors) == 1
    assert part in errors[0]
    run = gradguard.read_run(tmp_path / "run")
    (fault,) = faults_of(run.records)
    assert fault.data["part"] == part
    assert run.statistics.num_steps == STEPS


@pytest.mark.parametrize("name", FAULTS)
def test_what_still_works_goes_on(name, tmp_path):
    """The other rules act after the fault as before it."""
    policy, options, _ = FAULTS[name]
    mine = {"name": "mine", "when": "nonfinite", "do": "skip_step"}
    policy = gradguard.Policy(**{**policy, "rules": [*policy.get("rules", []), mine]})
    model, optimizer = build()
    guard = gradguard.attach(model, optimizer, policy, **options)
    train(model, optimizer, guard, range(10))
    guard.observe(math.nan)
    optimizer.step()
    assert guard.last.skipped


@pytest.mark.parametrize("name", FAULTS)
def test_those_who_prefer_an_error_get_the_original_one(name):
    policy, options, _ = FAULTS[name]
    model, optimizer = build()

    def attach_and_train():
        options_ = gradguard.Policy(on_internal_error="raise", **policy)
        guard = gradguard.attach(model, optimizer, options_, **options)
        train(model, optimizer, guard)

    with pytest.raises((ZeroDivisionError, ValueError)):
        attach_and_train()


def test_a_failing_action_is_recorded_as_a_non_action_with_its_reason():
    policy, options, _ = FAULTS["remedy"]
    model, optimizer = build()
    guard = gradguard.attach(model, optimizer, gradguard.Policy(**policy), **options)
    train(model, optimizer, guard, range(3))
    withheld = [record for record in guard.records if record.kind == "withheld"]
    assert [(record.step, record.reason) for record in withheld] == [(step, "failed") for step in range(3)]
    assert "of the plugin's" in withheld[0].detail


def test_a_fault_that_cannot_be_isolated_switches_the_guard_off_and_its_learning_rate_cut_with_it(
    expected, bits, lines
):
    """A loss that has no value, such as one on the meta device, is met in the middle of the measuring."""
    model, optimizer = build()
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": 0.1}}]}])
    guard = gradguard.attach(model, optimizer, policy)
    guard.observe(math.nan)
    optimizer.step()
    guard.observe(torch.tensor(1.0, device="meta"))
    train(model, optimizer, guard)
    assert bits(model, optimizer) == expected
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert len([line for line in lines if line.startswith("ERROR|gradguard")]) == 1
    guard.close()


def test_a_diagnosis_that_cannot_even_start_is_no_reason_to_leave_half_a_guard(tmp_path):
    model, optimizer = build()
    policy = gradguard.Policy(**rules(StillbornDiagnosis(), "skip_step"))
    try:
        gradguard.attach(model, optimizer, policy, run_dir=tmp_path / "run")
    except ZeroDivisionError:
        assert not optimizer._optimizer_step_pre_hooks
        assert not [param for param in model.parameters() if param._post_accumulate_grad_hooks]
    else:
        train(model, optimizer)
