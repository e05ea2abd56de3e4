"""`sync: deferred` does what `immediate` does, without waiting, and tells of it one step later."""

import copy
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from deferring import FUSED, NAN, Net, batch, policy_of, train
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard
from gradguard.audit.verify import verify_run
from gradguard.record.statistics import SCALARS, Flag


QUICK = settings(deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
PRESETS = ["default", "pretrain", "finetune", "rnn"]
SCHEDULES = {
    "none": None,
    "warmup": lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=8),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=7),
}


class Waiting(TorchDispatchMode):
    """Lists what makes the host wait for the device, while it is on: what hands a value over, at every level of torch.

    A copy that does not block is no wait, and reading it at a later step is none either.
    """

    def __init__(self, monkeypatch):
        super().__init__()
        self.waits = []
        self.sent = []
        for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy", "to"):
            monkeypatch.setattr(Tensor, name, self.noting(name, getattr(Tensor, name)))

    def noting(self, name, known):
        def call(tensor, *args, **kwargs):
            result = known(tensor, *args, **kwargs)
            if name == "to":
                if "cpu" in map(str, args) and kwargs.get("non_blocking"):
                    self.sent.append((len(self.waits), result))
                elif "cpu" in map(str, args):
                    self.waits[-1].append("to cpu")
            elif name != "numpy" or not any(t is tensor and step < len(self.waits) for step, t in self.sent):
                self.waits[-1].append(name)
            return result

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.partition(".")[0] in ("_local_scalar_dense", "is_nonzero", "equal", "nonzero"):
            self.waits[-1].append(func.__name__)
        return func(*args, **(kwargs or {}))


def waits(policy, sync, make, steps=90, **options):
    """Return what made the host wait from `observe` to the end of each step."""
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model.parameters())
    guard = gradguard.attach(model, optimizer, policy_of(policy, sync, **options))
    with pytest.MonkeyPatch.context() as monkeypatch:
        waiting = Waiting(monkeypatch)
        for step in range(steps):
            optimizer.zero_grad()
            loss = (model(batch(step)) - batch(step).sum(1, keepdim=True)).square().mean()
            loss.backward()
            waiting.waits.append([])
            with waiting:
                guard.observe(loss)
                optimizer.step()
    guard.close()
    return waiting.waits


PLAIN = [
    {"when": "nonfinite", "do": "skip_step"},
    {"when": "exploding_gradient", "do": {"clip_norm": {"max_norm": {"median_times": 3}}}},
    {"when": "loss_spike", "do": "skip_step"},
    {"name": "always", "when": "always", "do": {"clip_norm": {"max_norm": 1.0}}},
]


@pytest.mark.parametrize("optimizer", sorted(FUSED))
def test_a_healthy_step_makes_nobody_wait_but_the_first(optimizer):
    """Nine probes are among them; without `deferred` every step waits."""
    monitor = {"probe_every": 10, "sync": "deferred"}
    found = waits(PLAIN, "deferred", FUSED[optimizer], monitor=monitor)
    assert found[0]
    assert [step for step, reasons in enumerate(found) if reasons] == [0]
    assert all(waits(PLAIN, "immediate", FUSED[optimizer], steps=20))


@pytest.mark.parametrize("preset", PRESETS)
def test_what_waits_in_a_preset_are_the_steps_after_which_a_snapshot_is_taken_or_confirmed(preset):
    found = waits(preset, "deferred", FUSED["adamw"])
    assert [step for step, reasons in enumerate(found) if reasons][:6] == [0, 9, 19, 29, 39, 49]
    assert sum(map(bool, found)) < 12


@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.Adadelta, FUSED["adamw"]])
def test_only_observing_makes_nobody_wait_whatever_the_optimizer(make):
    found = waits("observe", "deferred", make)
    assert [step for step, reasons in enumerate(found) if "to cpu" in reasons or "numpy" in reasons] == [0]


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
    """Return the statistics as they are on disk, with one kind of NaN."""
    statistics = gradguard.read_run(run.guard.run_dir).statistics
    columns = {name: statistics[name] for name in [*dict(SCALARS), "norms"]}
    return {name: np.where(column == column, column, np.nan).tobytes() for name, column in columns.items()}


def is_one_parameter(run):
    """Return whether a gradient exploded in one parameter alone, for which the device has no clip."""
    return any(r.kind == "withheld" and "gradients of that step are gone" in r.detail for r in run.guard.records)


@settings(QUICK, max_examples=30)
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
        assert [f.diagnosis for f in found.findings] == [f.diagnosis for f in expected.findings]


@settings(QUICK, max_examples=30)
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
    options = {"optimizer": "momentum", "losses": {1: 1e3, 2: 1e8}, "asks": True}
    immediate, deferred = (train("finetune", sync, **options) for sync in ("immediate", "deferred"))
    assert [line for line in deferred.told if line[3] == "divergence" and line[4] == "rollback"]
    assert deferred.told == immediate.told


def test_a_learning_rate_that_is_cut_late_is_cut_from_the_next_step_on(tmp_path):
    rules = [{"name": "cut", "when": "exploding_gradient", "do": {"scale_lr": {"factor": 0.5}}}]
    runs = [train(rules, sync, losses={30: 1e5}, run_dir=tmp_path / sync) for sync in ("immediate", "deferred")]
    assert runs[0].told == runs[1].told
    factors = [gradguard.read_run(run.guard.run_dir).statistics["lr_factor"].tolist() for run in runs]
    assert factors[0] == [1.0] * 30 + [0.5] * 20
    assert factors[1] == [1.0] * 31 + [0.5] * 19


def test_a_single_parameter_that_explodes_is_recorded_but_not_clipped():
    """One factor is all that the device can apply."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, factor):
            ctx.factor = factor
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None

    answers = {}
    for sync in ("immediate", "deferred"):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(4)) for _ in range(2)]
        model = nn.ParameterList(weights)
        optimizer = torch.optim.SGD(weights, lr=1e-6, fused=True)
        guard = gradguard.attach(model, optimizer, policy_of("default", sync))
        for step in range(31):
            optimizer.zero_grad()
            small = Scaled.apply(weights[1], 1e-4 * (1e3 * 60 if step == 30 else 1.0))
            (weights[0] * 0.01 + small * 10).sum().backward()
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


STOP = [{"name": "end", "when": "nonfinite", "do": "stop"}]


def test_a_stop_ends_the_training_at_the_next_step_with_everything_on_record(bits, tmp_path):
    runs = {s: train(STOP, s, losses={20: NAN}, run_dir=tmp_path / s) for s in ("immediate", "deferred")}
    assert {sync: run.stopped for sync, run in runs.items()} == {"immediate": 20, "deferred": 21}
    read = {sync: gradguard.read_run(run.guard.run_dir) for sync, run in runs.items()}
    for run in read.values():
        assert run.status == "stopped"
        assert [(r.step, r.remedy) for r in run.interventions] == [(20, "stop")]
        assert run.statistics["step"].tolist() == list(range(21))
    weights = [list(run.model.parameters()) for run in runs.values()]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_stop_is_told_at_once_to_who_asks(tmp_path):
    run = train(STOP, "deferred", losses={20: NAN}, asks=True)
    assert run.stopped == 21
    assert [r.remedy for r in run.reports[20].interventions] == ["stop"]


def test_closing_right_after_a_fault_records_it(tmp_path):
    run = train("default", "deferred", losses={20: NAN}, steps=21, run_dir=tmp_path / "run")
    read = gradguard.read_run(run.guard.run_dir)
    assert [(r.step, r.remedy) for r in read.interventions] == [(20, "skip_step")]
    assert read.statistics["step"].tolist() == list(range(21))
    assert verify_run(tmp_path / "run") == []


def test_every_record_and_row_is_about_its_own_step(tmp_path):
    faults = {12: NAN, 25: 1e5, 37: NAN}
    run = train("default", "deferred", losses=faults, observe=None, run_dir=tmp_path / "run")
    read = gradguard.read_run(run.guard.run_dir)
    assert [r.step for r in read.interventions] == sorted(faults)
    assert read.statistics["step"].tolist() == list(range(50))
    flags = read.statistics["flags"]
    assert np.flatnonzero(flags & Flag.SKIPPED_BY_GUARD).tolist() == [12, 37]
    assert np.flatnonzero(flags & Flag.INTERVENTION).tolist() == sorted(faults)


def asks_for_last(run, step):
    _ = run.guard.last


def test_asking_between_forward_and_backward_leaves_a_skip_and_the_buffers_alone(bits):
    """What the new forward wrote to BatchNorm stays, and its graph can still be walked."""
    options = {"losses": {30: NAN}, "inputs": {40: NAN}}
    deferred = train("default", "deferred", between=asks_for_last, **options)
    immediate = train("default", "immediate", between=asks_for_last, **options)
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)


class Masked(nn.Module):
    """Buffers that nobody writes to: a mask of -inf, an expanded one; and one written to through `.data`."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("mask", torch.full((4,), -math.inf))
        self.register_buffer("expanded", torch.ones(1).expand(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, inputs):
        self.seen.data.add_(inputs.mean(0).detach())
        return (self.norm(self.layer(inputs)) * self.expanded).logaddexp(self.mask)


@pytest.mark.parametrize("asks", [True, False])
def test_a_nan_batch_leaves_no_trace_in_buffers(asks):
    """Nor are buffers touched that the model does not write to."""
    trained = {}
    for sync in ("immediate", "deferred"):
        torch.manual_seed(0)
        model = Masked()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        mask, expanded = model.mask, model.expanded
        with gradguard.attach(model, optimizer, policy_of("default", sync)) as guard:
            for step in range(20):
                optimizer.zero_grad()
                loss = model(batch(step) * (NAN if step in (7, 19) else 1.0)).square().mean()
                loss.backward()
                guard.observe(loss)
                optimizer.step()
                _ = guard.last if asks else None
                if step == 7 and sync == "deferred":
                    assert model.norm.num_batches_tracked == 7
                    assert model.norm.running_mean.isfinite().all()
        assert model.mask is mask
        assert model.expanded is expanded
        assert (mask._version, expanded._version) == (0, 0)
        trained[sync] = {name: value.clone() for name, value in model.named_buffers()}
    names = trained["immediate"].keys() - (set() if asks else {"seen"})  # which lacks the forward after the skip
    for name in names:
        assert torch.equal(trained["deferred"][name], trained["immediate"][name]), name
    assert trained["deferred"]["seen"].isfinite().all()


def test_a_graph_that_outlives_the_step_of_another_optimizer_can_still_be_walked():
    """Putting buffers back is no write that torch's version check should see."""
    trained = {}
    for sync in ("immediate", "deferred"):
        torch.manual_seed(0)
        body, head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1)
        model = nn.ModuleDict({"body": body, "head": head})
        parts = [torch.optim.AdamW(part.parameters(), fused=True) for part in (head, body)]
        guards = [gradguard.attach(model, optimizer, policy_of("default", sync)) for optimizer in parts]
        for step in range(20):
            features = body(batch(step))
            losses = [head(features.detach()).square().mean(), features.square().mean()]
            for loss, optimizer, guard in zip(losses, parts, guards, strict=True):
                optimizer.zero_grad()
                (loss * (NAN if step == 12 else 1.0)).backward()
                guard.observe(loss * (NAN if step == 12 else 1.0))
                optimizer.step()
        for guard in guards:
            guard.close()
        trained[sync] = model.state_dict()
    for name, value in trained["immediate"].items():
        assert torch.equal(trained["deferred"][name], value), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_that_are_added_are_guarded_from_their_first_step_on(bits, dtype):
    """With wide ones among them the host waits, since no kernel can apply a factor exactly."""

    def add(run, step):
        if step == 20:
            torch.manual_seed(1)
            run.model.late = nn.Linear(4, 1, dtype=dtype)
            run.optimizer.add_param_group({"params": run.model.late.parameters(), "lr": 0.001})

    options = {"losses": {20: NAN, 22: NAN, 35: NAN}, "around": add}
    immediate, deferred = (train("default", sync, **options) for sync in ("immediate", "deferred"))
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)
    assert bool(deferred.guard.reasons_to_wait) == (dtype is torch.float64)


@pytest.mark.parametrize("saved_at", [1, 9, 12, 13, 17, 26])
def test_a_run_saved_at_any_step_goes_on_as_the_uninterrupted_one(bits, saved_at):
    """What is under way is taken in before anything is saved."""
    options = {"losses": {12: NAN, 25: 1e5, 37: NAN}, "observe": None}
    saved = {}

    def save(run, step):
        if step == saved_at:
            parts = {"model": run.model, "optimizer": run.optimizer, "guard": run.guard}
            saved.update({name: copy.deepcopy(part.state_dict()) for name, part in parts.items()})

    def load(run):
        for name, part in (("model", run.model), ("optimizer", run.optimizer), ("guard", run.guard)):
            part.load_state_dict(saved[name])

    whole = train("default", "deferred", around=save, **options)
    resumed = train("default", "deferred", start=load, left_out=set(range(saved_at + 1)), **options)
    later = [line for line in whole.told if line[0] == "intervention" and line[1] > saved_at]
    assert [line for line in resumed.told if line[0] == "intervention"] == later
    assert resumed.state(bits) == whole.state(bits)


@pytest.mark.parametrize("is_later", [False, True])
def test_a_loaded_state_that_ends_the_fused_path_makes_the_host_wait(is_later):
    """Torch's other kernels refuse to skip."""
    state = torch.optim.AdamW(Net().parameters(), lr=0.01).state_dict()

    def load(run, step):
        if step == 15 * is_later:
            run.optimizer.load_state_dict(state)

    run = train("default", "deferred", losses={30: NAN}, around=load)
    assert [line[1:5] for line in run.told if line[0] == "intervention"] == [
        (30, "drop-nonfinite", "nonfinite", "skip_step")
    ]
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_a_finding_of_a_step_that_was_judged_at_once_keeps_the_next_ones_from_the_device():
    """Trouble comes in series: each finding of a series starts the watch afresh."""
    run = train("default", "deferred", losses=dict.fromkeys((20, 28, 36), NAN), asks=False, steps=45)
    late = [r.step for r in run.guard.records if r.kind == "intervention" and "buffers" not in r.change.summary]
    assert [line[1] for line in run.told if line[0] == "intervention"] == [20, 28, 36]
    assert late == [20]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize(("killed_at", "steps"), [("5", []), ("6", [5])])
def test_a_run_that_was_killed_lacks_its_last_step_at_most(tmp_path, killed_at, steps):
    command = [sys.executable, str(Path(__file__).with_name("killed_training.py")), str(tmp_path / "run")]
    process = subprocess.run([*command, "deferred", killed_at], capture_output=True, text=True, timeout=60)
    assert process.returncode == -signal.SIGKILL, process.stderr
    run = gradguard.read_run(tmp_path / "run")
    assert [(record.step, record.remedy) for record in run.interventions] == [(step, "skip_step") for step in steps]
    assert [problem for problem in verify_run(tmp_path / "run") if problem.kind != "unfinished"] == []
