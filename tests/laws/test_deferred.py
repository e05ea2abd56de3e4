"""`sync: deferred` does what `immediate` does, without waiting, and tells of it one step later."""

import math

import numpy as np
import pytest
import torch
from deferring import FUSED, NAN, batch, policy_of, train
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES, Diagnosis
from gradguard.evidence.trigger import Trigger
from gradguard.faults import Fault
from gradguard.record.statistics import SCALARS, Flag


PRESETS = ["default", "pretrain", "finetune", "rnn"]


QUICK = settings(deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])


SCHEDULES = {
    "none": None,
    "warmup": lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=8),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=7),
}


LOSSES = st.dictionaries(st.integers(1, 49), st.sampled_from([NAN, math.inf, 20.0, 1e3, 1e5, 1e8]), max_size=4)


INPUTS = st.dictionaries(st.integers(1, 49), st.sampled_from([NAN, -math.inf, 10.0, 50.0]), max_size=2)


TRAININGS = st.fixed_dictionaries(
    {
        "optimizer": st.sampled_from(sorted(FUSED)),
        "losses": LOSSES,
        "inputs": INPUTS,
        "without_side": st.sets(st.integers(0, 49), max_size=10),
        "num_micro_batches": st.integers(1, 3),
        "observe": st.sampled_from(["tensor", "number", None]),
        "schedule": st.sampled_from(list(SCHEDULES.values())),
        "closure": st.booleans(),
        "set_to_none": st.booleans(),
    }
)


def trained(policy, path, options, **more):
    """Return the immediate and the deferred run of one training."""
    if options["optimizer"] == "momentum":  # torch's fused kernel takes no parameter that joins in later
        options = {**options, "without_side": set()}
    return [train(policy, sync, run_dir=path / sync, **options, **more) for sync in ("immediate", "deferred")]


def rows_of(run):
    """Return the statistics as they are on disk, with one kind of NaN; that there were findings, `told` says."""
    statistics = gradguard.read_run(run.guard.run_dir).statistics
    columns = {name: statistics[name] for name in [*dict(SCALARS), "norms"]}
    columns["flags"] = columns["flags"] & ~np.uint32(Flag.FINDING | Flag.INTERVENTION)
    return {name: np.where(column == column, column, np.nan).tobytes() for name, column in columns.items()}


def is_one_parameter(run):
    """Return whether a gradient exploded in one parameter alone, for which the device has no clip."""
    return any(r.kind == "withheld" and "gradients of that step are gone" in r.detail for r in run.guard.records)


@settings(QUICK, max_examples=20)
@given(preset=st.sampled_from(PRESETS), options=TRAININGS)
def test_a_deferred_run_that_is_asked_after_each_step_is_the_immediate_one(bits, tmp_path_factory, preset, options):
    """Parameters, buffers, optimizer state, what was done and why, every row, and every answer."""
    immediate, deferred = trained(preset, tmp_path_factory.mktemp("runs"), options, asks=True)
    if is_one_parameter(deferred):
        return
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)
    assert rows_of(deferred) == rows_of(immediate)
    for found, expected in zip(deferred.reports, immediate.reports, strict=True):
        for name in ("step", "skipped", "skipped_by", "lr_factor", "clip_coef"):
            assert getattr(found, name) == getattr(expected, name)
        assert found.global_norm == expected.global_norm or math.isnan(expected.global_norm)
        seen = [[f.diagnosis for f in report.findings if f.diagnosis != "bad_inputs"] for report in (found, expected)]
        assert seen[0] == seen[1]


@settings(QUICK, max_examples=20)
@given(preset=st.sampled_from(PRESETS), options=TRAININGS)
def test_a_deferred_run_that_is_never_asked_is_the_immediate_one(bits, tmp_path_factory, preset, options):
    """Unless a rollback is first decided about a step that was left to the device: the next step is dropped then."""
    immediate, deferred = trained(preset, tmp_path_factory.mktemp("runs"), options)
    if is_one_parameter(deferred) or any("step_dropped" in line for line in deferred.told):
        return
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)
    assert rows_of(deferred) == rows_of(immediate)


OBSERVED = {"norm": None, "loss": "number", "nan": "tensor"}


SPIKES = {"norm": {"losses": {30: 1e5}}, "loss": {"inputs": {30: 30.0}}, "nan": {"losses": {30: NAN}}}


@pytest.mark.parametrize("spike", SPIKES)
@pytest.mark.parametrize("optimizer", sorted(FUSED))
@pytest.mark.parametrize("preset", ["default", "pretrain"])
def test_the_device_acts_on_a_single_fault_and_is_told_of_it(bits, spike, optimizer, preset):
    """The step itself did not wait, and what was done about it is that of the immediate run."""
    acted = []

    def look(run, step):
        if step == 30:
            acted.append([r for r in run.guard.records if r.kind == "intervention"])

    options = {"optimizer": optimizer, "observe": OBSERVED[spike], **SPIKES[spike]}
    immediate = train(preset, "immediate", **options)
    deferred = train(preset, "deferred", around=look, **options)
    assert acted == [[]]
    assert {line[1] for line in deferred.told if line[0] == "intervention"} == {30}
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)


FAULTS = {
    "NaN gradient": Fault("nan", "gradient", at=30, parameters="body.0.weight"),
    "Inf gradient": Fault("inf", "gradient", at=30),
    "NaN weight": Fault("nan", "weight", at=30, parameters="body.3.weight"),
    "flipped weight": Fault("bitflip", "weight", at=30, parameters="body.3.weight"),
    "NaN batch": Fault("nan", "batch", at=30),
    "learning rate": Fault("scale", "lr", at=30, factor=1e4),
    "NaN gradients again and again": Fault("nan", "gradient", at=15, every=3),
    "large gradients again and again": Fault("scale", "gradient", at=25, every=2, factor=1e5),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_every_kind_of_fault_ends_as_in_the_immediate_run(bits, fault, optimizer):
    """From the first trace to the last rung; but a norm that only overflowed is not told from an infinite one."""
    options = {"optimizer": optimizer, "faults": [FAULTS[fault]], "asks": True, "steps": 70}
    immediate, deferred = (train("default", sync, **options) for sync in ("immediate", "deferred"))
    told = [[line for line in run.told if line[2] != "tame-overflow"] for run in (immediate, deferred)]
    assert told[0] == told[1]
    assert len(told[0]) > 2
    assert deferred.state(bits) == immediate.state(bits)


def test_an_sgd_step_far_beyond_the_weights_is_clipped_by_one_limit_alone(bits):
    """It is above the rolling level as well: the rule acts once."""
    options = {"optimizer": "sgd", "observe": None, "losses": {12: 1e6, 40: 1e6}}
    immediate, deferred = (train("default", sync, **options) for sync in ("immediate", "deferred"))
    assert [line for line in deferred.told if line[4] == "clip_norm"]
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)


ROLLBACK = [{"name": "back", "when": "nonfinite", "do": "rollback"}]


def test_a_rollback_that_is_told_late_costs_the_step_that_follows(bits):
    """Its gradients are of weights that are no more. The run is the one that never saw that batch."""
    options = {"losses": {20: NAN}}
    deferred = train(ROLLBACK, "deferred", **options)
    immediate = train(ROLLBACK, "immediate", left_out={21}, **options)
    assert ("event", 21, "", "", "step_dropped", "") in deferred.told
    assert deferred.state(bits) == immediate.state(bits)
    asked = train(ROLLBACK, "deferred", asks=True, **options)
    assert asked.told == (at_once := train(ROLLBACK, "immediate", **options)).told
    assert asked.state(bits) == at_once.state(bits)


def test_a_rollback_by_a_diagnosis_that_cannot_be_foreseen_is_no_disagreement():
    """The device may have clipped what the host undid as a whole."""
    options = {"losses": {3: 20.0, 4: 1e3}, "observe": "number", "asks": True}
    immediate, deferred = (train("finetune", sync, **options) for sync in ("immediate", "deferred"))
    assert [line for line in deferred.told if line[3] == "divergence" and line[4] == "rollback"]
    assert deferred.told == immediate.told


class Eager(Diagnosis):
    """Says beforehand that it will fire from the second step on, and then does not."""

    name = "eager"
    is_foreseeable = True

    def update(self, state, stats):
        return state, None

    def init(self, table, rows):
        return 0

    def triggers(self, state, stats):
        return (Trigger("loss", -math.inf if stats.step == 2 else math.inf),)


@pytest.mark.parametrize(
    ("remedy", "told"),
    [
        ("skip_step", "the device skipped the step"),
        (REMEDIES.get("clip_norm")(max_norm=1e-3), "the device multiplied the gradients by 0.000"),
    ],
)
def test_a_device_that_did_what_the_host_would_not_have_done_is_told_of(remedy, told):
    """Two sums of the same squares may fall on either side of a threshold."""
    policy = gradguard.Policy(rules=[{"when": Eager(), "do": remedy}], sinks=[], monitor={"sync": "deferred"})
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with gradguard.attach(model, optimizer, policy) as guard:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
    (event,) = [r for r in guard.records if r.kind == "event" and r.event == "device_disagrees"]
    assert event.step == 2
    assert told in event.message
    assert event.data["device_skipped"] == (remedy == "skip_step")


def test_a_learning_rate_that_is_cut_late_is_cut_from_the_next_step_on(tmp_path):
    rules = [{"name": "cut", "when": "exploding_gradient", "do": {"scale_lr": {"factor": 0.5}}}]
    runs = [train(rules, sync, losses={30: 1e5}, run_dir=tmp_path / sync) for sync in ("immediate", "deferred")]
    assert runs[0].told == runs[1].told
    factors = [gradguard.read_run(run.guard.run_dir).statistics["lr_factor"].tolist() for run in runs]
    assert factors[0] == [1.0] * 30 + [0.5] * 20
    assert factors[1] == [1.0] * 31 + [0.5] * 19


def test_a_single_parameter_that_explodes_is_recorded_but_not_clipped():
    """One factor is all that the device can apply."""
    answers = {}
    for sync in ("immediate", "deferred"):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(4)) for _ in range(2)]
        model = nn.ParameterList(weights)
        optimizer = torch.optim.SGD(weights, lr=1e-6, fused=True)
        rules = [{"when": "exploding_gradient", "do": {"clip_norm": {"max_norm": {"median_times": 3}}}}]
        guard = gradguard.attach(model, optimizer, policy_of(rules, sync))
        for step in range(31):
            optimizer.zero_grad()
            (weights[0] * 0.01 + weights[1] * (0.6 if step == 30 else 0.001)).sum().backward()
            optimizer.step()
        answers[sync] = [(r.kind, r.step, r.remedy, getattr(r, "detail", "")) for r in guard.last.records]
        guard.close()
    gone = "the gradients of that step are gone: with `sync: deferred` it was judged one step later"
    assert answers["immediate"] == [("intervention", 30, "clip_norm", "")]
    assert answers["deferred"] == [("withheld", 30, "clip_norm", gone)]


def test_a_gradient_too_large_to_square_is_skipped_instead_of_clipped():
    """The device cannot tell it from an infinite one."""
    told = {s: train("default", s, losses={30: 1e25}, observe=None) for s in ("immediate", "deferred")}
    acted = {sync: [line[3:5] for line in run.told if line[0] == "intervention"] for sync, run in told.items()}
    assert acted["immediate"][-1] == ("exploding_gradient", "clip_norm")
    assert acted["deferred"] == [("nonfinite", "skip_step")]
    (record,) = [r for r in told["deferred"].guard.records if r.kind == "intervention"]
    assert "or too large to square" in record.finding.message


def test_a_parameter_whose_first_gradient_comes_with_a_skipped_step_has_state_of_zeros():
    """Torch's kernel makes it before it looks whether to skip; the immediate run has none yet."""
    options = {"losses": {30: NAN}, "steps": 31, "without_side": set(range(30))}
    immediate, deferred = (train("default", sync, **options) for sync in ("immediate", "deferred"))
    assert len(immediate.optimizer.state) == 6
    extra = [deferred.optimizer.state[p] for p in deferred.model.side.parameters()]
    assert [bool(value.any()) for state in extra for value in state.values()] == [False] * 6


def test_the_gradients_of_a_step_that_the_device_skipped_are_still_there():
    immediate, deferred = (train("default", sync, losses={30: NAN}, steps=31) for sync in ("immediate", "deferred"))
    assert all(p.grad is None for p in immediate.model.parameters())
    assert all(p.grad.isnan().any() for p in deferred.model.parameters())


def test_a_sick_run_that_is_only_observed_is_told_alike(bits, tmp_path):
    """What a NaN batch did to the weights is not taken for its cause."""
    runs = [
        train("observe", sync, losses={30: NAN, 12: 1e5}, inputs={8: 20.0}, run_dir=tmp_path / sync)
        for sync in ("immediate", "deferred")
    ]
    assert runs[0].told == runs[1].told
    assert [line[4] for line in runs[1].told if line[1] == 30] == ["skip_step"]
    assert rows_of(runs[0]) == rows_of(runs[1])


def test_a_finding_of_a_step_that_was_judged_at_once_keeps_the_next_ones_from_the_device():
    """Trouble comes in series: each finding of a series starts the watch afresh."""
    run = train("default", "deferred", losses=dict.fromkeys((20, 28, 36), NAN), asks=False, steps=45)
    late = [r.step for r in run.guard.records if r.kind == "intervention" and "buffers" not in r.change.summary]
    assert [line[1] for line in run.told if line[0] == "intervention"] == [20, 28, 36]
    assert late == [20]
