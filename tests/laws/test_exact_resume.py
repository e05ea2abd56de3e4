"""A run that is saved and resumed at any step does, finds and decides exactly what the uninterrupted one does."""

import io
import math
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard
from gradguard.contracts import Diagnosis
from gradguard.records import Finding


STEPS = 90
# What goes wrong, by step: NaN batches, some far too large, and a series that calls for a rollback.
FAULTS = {
    12: math.nan,
    25: 1e4,
    26: 1e4,
    33: math.nan,
    34: math.nan,
    40: math.nan,
    **dict.fromkeys(range(50, 56), math.nan),
    70: 1e4,
    71: 1e4,
    80: math.inf,
}
LASTING = dict.fromkeys(range(56, 60), math.nan)  # which the default policy takes for a bad state


class WeightsSeen(Diagnosis):
    """Tells what is only sampled now and then, and remembers it in a state of its own kind."""

    name = "weights_seen"

    def init(self, table, rows):
        return []

    def update(self, state, stats):
        state.append(float(stats.weight_norms.sum()))
        return state, Finding(diagnosis=self.name, step=stats.step, severity="info", value=sum(state[-9:]))


POLICY = gradguard.Policy(
    horizon=15,
    budget=11,
    budget_within=40,
    on_budget="record",
    snapshots={"every": 10},
    monitor={"probe_every": 25},
    rules=[
        {
            "name": "drop",
            "when": "nonfinite",
            "do": ["skip_step", {"scale_lr": {"factor": 0.5, "recover_steps": 9}}],
            "escalate": [
                {"after": 3, "within": 6, "do": ["rollback", {"scale_lr": {"factor": 0.1, "recover_steps": 20}}]}
            ],
            "budget_per_parameter": 30,
        },
        {
            "name": "judged",
            "when": "nonfinite",
            "do": {"scale_lr": {"factor": 0.9}},
            "escalate": [
                {"if_outcome": "helped", "do": {"scale_lr": {"factor": 0.8}}},
                {"if_outcome": ["no_effect", "worse"], "within": 60, "do": {"scale_lr": {"factor": 0.7}}},
            ],
            "budget_per_parameter": 9,
        },
        {
            "name": "tame",
            "when": {"exploding_gradient": {"window": 20, "warmup": 10, "extreme_ratio": 1000, "max_update": 1e9}},
            "do": {"clip_norm": {"max_norm": {"median_times": 3, "window": 20}}},
            "cooldown": 4,
        },
        {
            "name": "leash",
            "when": {"loss_spike": {"window": 20, "warmup": 10}},
            "do": {"keep_clipping": {"max_norm": {"median_times": 2, "window": 20}, "steps": 11}},
            "cooldown": 30,
            "budget": 1,
        },
        {"when": "divergence", "do": "notify"},
        {"when": "vanishing_gradient", "do": "notify"},
        {"name": "theirs", "when": WeightsSeen(), "do": "notify"},
        {"when": "stale_gradients", "do": "notify"},
    ],
)

# The same with limits that have a memory.
LIMITS = POLICY.model_copy(
    update={
        "rules": (
            *POLICY.rules,
            *gradguard.Policy(
                rules=[
                    {"name": name, "when": "always", "do": {"clip_norm": {"max_norm": limit}}}
                    for name, limit in {
                        "z": {"zscore": 1.5, "warmup": 10, "release": 20},
                        "q": {"quantile": 0.6},
                        "a": {"adagc": 1.05, "warmup": 20, "window": 10},
                        "p": {"percentile": 80, "window": 15},
                    }.items()
                ]
            ).rules,
        )
    }
)
POLICIES = {"own": POLICY, "limits": LIMITS, "default": "default"}


class Training:
    def __init__(self, policy):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.99)
        self.policy = policy
        self.faults = FAULTS | LASTING if policy == "default" else FAULTS
        self.guard = None
        self.told = []
        self.records = []

    def attach(self, **options):
        self.guard = gradguard.attach(self.model, self.optimizer, self.policy, **options)

    def run(self, steps):
        for step in steps:
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean() * self.faults.get(step, 1.0)
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            self.schedule.step()
            last = self.guard.last
            self.told.append(
                repr((last.step, last.skipped, last.lr_factor, last.clip_coef, without_place(last.records)))
            )
            self.records += last.records

    def save(self, file):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule", "guard")}
        torch.save(parts, file)
        file.seek(0)

    def load(self, file, attach_first, **options):
        parts = torch.load(file, weights_only=True)
        if attach_first:
            self.attach(**options)
        for name in ("model", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(parts[name])
        if not attach_first:
            self.attach(**options)
        self.guard.load_state_dict(parts["guard"])


def without_place(records):
    """Return records without what belongs to the file: their place in it and the time."""
    return [record.model_copy(update={"seq": 0, "time": ""}) for record in records]


def outcomes(*trainings):
    records = [record for training in trainings for record in training.guard.records if record.kind == "outcome"]
    return [repr(record.model_copy(update={"of": 0})) for record in without_place(records)]


@pytest.fixture(scope="module")
def uninterrupted(bits):
    """Function: name of a policy -> (the training at its end, its bits)."""

    @cache
    def result(name):
        training = Training(POLICIES[name])
        training.attach()
        training.run(range(STEPS))
        return training, bits(training.model, training.optimizer)

    return result


@settings(max_examples=15, deadline=None, derandomize=True)
@given(stop=st.integers(0, STEPS), policy=st.sampled_from(sorted(POLICIES)), attach_first=st.booleans())
@example(stop=0, policy="own", attach_first=False)
@example(stop=STEPS, policy="own", attach_first=False)
@example(stop=13, policy="own", attach_first=False)
@example(stop=27, policy="own", attach_first=False)
@example(stop=53, policy="own", attach_first=True)
@example(stop=60, policy="default", attach_first=False)
@example(stop=7, policy="limits", attach_first=False)
@example(stop=53, policy="limits", attach_first=True)
def test_a_resumed_run_is_the_uninterrupted_one(bits, uninterrupted, stop, policy, attach_first):
    """At any step: with a cut in force, in a cooldown, with a snapshot that waits, with outcomes that are due."""
    whole, expected = uninterrupted(policy)
    first = Training(POLICIES[policy])
    first.attach()
    first.run(range(stop))
    file = io.BytesIO()
    first.save(file)
    second = Training(first.policy)
    torch.rand(stop)  # a resumed process has another past
    second.load(file, attach_first)
    second.run(range(stop, STEPS))
    assert first.told == whole.told[:stop]
    assert second.told == whole.told[stop:]
    assert without_random(bits(second.model, second.optimizer)) == without_random(expected)
    assert outcomes(first, second) == outcomes(whole)


def without_random(named):
    return {name: value for name, value in named.items() if not name.startswith(".random")}


@pytest.mark.parametrize("policy", ["own", "default"])
def test_the_run_that_is_resumed_is_an_eventful_one(uninterrupted, policy):
    """So that the law above is put to the test at all."""
    training, _ = uninterrupted(policy)
    remedies = {record.remedy for record in training.records if record.kind == "intervention"}
    assert {"skip_step", "scale_lr", "rollback"} <= remedies
    assert outcomes(training)
    if policy == "own":
        assert {"clip_norm", "keep_clipping"} <= remedies
        withheld = {record.reason for record in training.records if record.kind == "withheld"}
        assert {"cooldown", "below_severity", "budget"} <= withheld
        details = " ".join(record.detail for record in training.records if record.kind == "withheld")
        assert all(whose in details for whose in ("the run had its 11", "the rule had its 1", "every parameter"))
        assert {record.rung for record in training.records if getattr(record, "rule", "") == "judged"} >= {0, 1}


def test_saving_does_not_change_the_run_and_the_saved_state_does_not_change_with_it(bits, uninterrupted):
    whole, expected = uninterrupted("own")
    training = Training(POLICY)
    training.attach()
    saved = []
    for step in range(STEPS):
        saved.append((training.guard.state_dict(), torch_bytes(training.guard.state_dict())))
        training.run([step])
    assert training.told == whole.told
    assert without_random(bits(training.model, training.optimizer)) == without_random(expected)
    assert all(torch_bytes(state) == data for state, data in saved)


def torch_bytes(state):
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_resume_is_in_the_record():
    first = Training(POLICY)
    first.attach()
    first.run(range(20))
    file = io.BytesIO()
    first.save(file)
    second = Training(POLICY)
    second.load(file, attach_first=False)
    event = second.guard.records[-1]
    assert (event.event, event.step) == ("resumed", 20)
    assert second.guard.step == 20


def test_an_outcome_of_the_first_record_is_not_taken_for_one_of_the_second(tmp_path):
    """A resumed run has a record of its own; what is judged in it may have been done in the one before."""
    first = Training(POLICY)
    first.attach(run_dir=tmp_path / "first")
    first.run(range(30))
    file = io.BytesIO()
    first.save(file)
    first.guard.close()
    second = Training(POLICY)
    second.load(file, attach_first=False, run_dir=tmp_path / "second")
    second.run(range(30, STEPS))
    second.guard.close()
    run = gradguard.read_run(tmp_path / "second")
    steps = {record.seq: record.step for record in run.interventions}
    judged = [(steps[r.of], r.step - r.horizon) for r in run.records if r.kind == "outcome" and r.of in steps]
    assert judged
    assert all(done_at == judged_at for done_at, judged_at in judged)


def test_damage_in_a_buffer_is_still_damage_after_a_resume():
    """A buffer that is infinite when a guard first sees it is meant to be, but this guard was there before."""
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "notify"}], monitor={"probe_every": 5}, sinks=[])
    whole, first, second = (Training(policy) for _ in range(3))
    for training in (whole, first):
        training.attach()
        training.run(range(7))
        training.model[1].running_var.fill_(math.inf)
    whole.run(range(7, 30))
    file = io.BytesIO()
    first.save(file)
    second.load(file, attach_first=False)
    second.run(range(7, 30))
    assert second.told == whole.told[7:]
    assert any("running_var" in told for told in second.told)
