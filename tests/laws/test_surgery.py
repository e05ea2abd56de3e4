"""Surgery: only where a policy names it; afterwards the guard starts afresh, and a resumed run knows of it."""

import copy
import io

import pytest
import torch
from guarded import noise
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES
from gradguard.policy.load import load_preset, preset_names


NAN_AT = 30
SWAP = {"replace_activation": {"kinds": ["sigmoid"], "to": "tanh"}}
SURGERY = {cls.name for cls in REMEDIES if cls.kind == "surgery"}


def remedies_of(policy):
    return {remedy.name for rule in policy.rules for rung in rule.ladder() for remedy in rung}


def test_what_counts_as_surgery():
    assert SURGERY == {"reinitialize", "revive_units", "replace_activation"}


@pytest.mark.parametrize("name", preset_names())
def test_only_the_preset_repair_operates(name):
    assert bool(remedies_of(load_preset(name)) & SURGERY) == (name == "repair")


def test_every_operation_of_the_preset_happens_a_few_times_at_most():
    """By the rule's own budget, or on a rung that is soon used up."""
    for rule in load_preset("repair").rules:
        if {remedy.name for remedy in rule.do} & SURGERY:
            assert rule.budget is not None
            assert rule.budget <= 4
        for index, rung in enumerate(rule.escalate[:-1]):
            if {remedy.name for remedy in rung.do} & SURGERY:
                assert rule.escalate[index + 1].after <= 2


class Job:
    """A training that meets a NaN batch, guarded by a rule on it."""

    def __init__(self, do, *, every=10, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 16),
            nn.BatchNorm1d(16),
            nn.Sigmoid(),
            nn.Dropout(0.1),
            nn.Linear(16, 16),
            nn.ReLU(),
            nn.Linear(16, 1),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, **options)
        rules = [{"when": "nonfinite", "do": do}, {"name": "seen", "when": "dead_units", "do": "notify"}]
        rules += [{"name": "undo", "when": "divergence", "do": "rollback"}]
        monitor = {"probe_every": every, **({"sync": "deferred"} if options else {})}
        policy = {"rules": rules, "monitor": monitor, "snapshots": {"every": 10}, "sinks": []}
        self.guard = gradguard.attach(self.model, self.optimizer, gradguard.Policy.model_validate(policy))
        self.kept = []

    def train(self, start, end, nan_at=NAN_AT):
        for step in range(start, end):
            self.optimizer.zero_grad()
            inputs = noise(step, 32, 4)
            torch.manual_seed(step)
            loss = (self.model(inputs) - inputs[:, :1]).square().mean()
            if step == nan_at:
                loss = loss * float("nan")
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()

    def save(self):
        file = io.BytesIO()
        parts = {"model": self.model, "optimizer": self.optimizer, "guard": self.guard}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def resume(self, saved):
        for name in ("model", "optimizer", "guard"):
            getattr(self, name).load_state_dict(copy.deepcopy(saved[name]))

    def done(self):
        return [(record.step, record.remedy) for record in self.guard.records if record.kind == "intervention"]


OPERATIONS = {
    "swap": [SWAP],
    "he": [{"reinitialize": {"scheme": "he"}}],
    "lsuv": [{"reinitialize": {"scheme": "lsuv"}}],
    "both": [SWAP, {"reinitialize": {"scheme": "lsuv"}}],
}
every_operation = pytest.mark.parametrize("do", OPERATIONS.values(), ids=OPERATIONS)


@every_operation
def test_a_guard_that_could_operate_but_does_not_leaves_the_run_bit_identical(do, bits):
    job, other = Job(do), Job("notify")
    other.guard.close()
    job.train(0, 25)
    other.guard.observe = lambda loss: None
    other.train(0, 25)
    assert bits(job.model, job.optimizer) == bits(other.model, other.optimizer)


@every_operation
@pytest.mark.parametrize("saved_at", [31, 32, 38, 45])
def test_a_run_that_is_resumed_after_an_operation_is_the_uninterrupted_one(do, saved_at, bits):
    job = Job(do)
    job.train(0, saved_at)
    saved = job.save()
    job.train(saved_at, 70)
    resumed = Job(do)
    resumed.resume(saved)
    resumed.train(saved_at, 70)
    assert bits(resumed.model, resumed.optimizer) == bits(job.model, job.optimizer)
    assert repr(resumed.model) == repr(job.model)
    assert {remedy for _, remedy in job.done()} == {name for one in do for name in one}


@every_operation
def test_the_step_is_dropped_and_the_windows_start_afresh(do):
    job = Job(do)
    job.train(0, NAN_AT)
    assert job.guard._pipeline.judgement.losses[50].median == job.guard._pipeline.judgement.losses[50].median
    job.train(NAN_AT, NAN_AT + 1)
    assert job.guard.last.skipped
    median = job.guard._pipeline.judgement.losses[50].median
    assert median != median  # NaN: nothing is known
    assert [step for step, _ in job.done()] == [NAN_AT] * len(do)


@every_operation
def test_a_rollback_leads_to_the_state_just_after_the_operation(do):
    job = Job(do)
    job.train(0, NAN_AT + 1)
    after = copy.deepcopy(job.model.state_dict())
    assert job.guard.snapshots.good.step == NAN_AT
    job.train(NAN_AT + 1, NAN_AT + 5)
    job.guard.snapshots.restore(NAN_AT + 5)
    assert all(torch.equal(value, after[name]) for name, value in job.model.state_dict().items())


def test_the_probe_sees_the_new_activations():
    job = Job([SWAP], every=5)
    job.train(0, 50)
    found = job.guard._pipeline.probes._activations._found
    assert [place.kind for place in next(iter(found.values())).places if not place.is_input] == ["tanh", "relu"]


def test_an_operation_after_the_fact_drops_the_gradients_that_are_there_already():
    """With `sync: deferred` the host learns of a step when the next one has its gradients."""
    job = Job(["skip_step", SWAP], fused=True)
    job.train(0, 70)
    assert job.guard.reasons_to_wait == ()
    assert job.done() == [(NAN_AT, "skip_step"), (NAN_AT, "replace_activation")]
    assert any(
        "before the guard replaced them" in record.message for record in job.guard.records if record.kind == "event"
    )
    assert all(bool(param.isfinite().all()) for param in job.model.parameters())


def test_a_rollback_at_the_same_step_comes_first():
    job = Job(["rollback", SWAP])
    job.train(0, NAN_AT + 1)
    assert job.done() == [(NAN_AT, "rollback"), (NAN_AT, "replace_activation")]
    assert job.guard.snapshots.good.step == NAN_AT


def test_what_that_rollback_replaced_cannot_be_brought_back():
    """It is of the old structure."""
    job = Job(["rollback", SWAP])
    job.train(0, NAN_AT + 1)
    assert job.guard.snapshots.take_aside(NAN_AT + 1) is None


def test_a_later_skip_does_not_bring_old_running_statistics_back():
    job = Job([{"reinitialize": {"scheme": "he"}}])
    job.train(0, NAN_AT + 1)
    assert job.model[1].running_mean.unique().tolist() == [0.0]
    assert job.guard._pipeline.target.buffers.restore() == 0


def test_with_a_stop_nothing_is_operated_on():
    job = Job(["stop", SWAP])
    with pytest.raises(gradguard.TrainingStopped):
        job.train(0, NAN_AT + 1)
    assert job.done() == [(NAN_AT, "stop")]
    assert isinstance(job.model[2], nn.Sigmoid)


def test_inputs_are_kept_only_when_a_policy_names_their_use():
    assert Job([SWAP]).guard._pipeline.target.inputs is None
    job = Job([{"reinitialize": {"scheme": "he"}}])
    assert job.guard._pipeline.target.inputs is not None
    job.guard.close()
    assert job.guard._pipeline.target.inputs is None
    assert not job.model._forward_pre_hooks


def test_observe_does_not_operate(bits):
    policy = load_preset("repair").model_copy(update={"mode": "observe", "sinks": ()})
    results = []
    for is_guarded in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        nn.init.zeros_(model[0].weight)
        nn.init.zeros_(model[2].weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = gradguard.attach(model, optimizer, policy) if is_guarded else None
        for step in range(20):
            optimizer.zero_grad()
            loss = model(noise(step, 16, 4)).square().mean()
            loss.backward()
            if guard is not None:
                guard.observe(loss)
            optimizer.step()
        results.append(bits(model, optimizer))
        if guard is not None:
            assert [r.remedy for r in guard.records if r.kind == "withheld" and r.reason == "dry_run"] == [
                "reinitialize"
            ]
    assert results[0] == results[1]


def test_which_units_are_dead_is_in_the_record_of_the_probe(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.constant_(model[0].bias[3:5].detach(), -1e3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    policy = gradguard.Policy.model_validate({"rules": [{"when": "dead_units", "do": "revive_units"}], "sinks": []})
    with gradguard.attach(model, optimizer, policy, run_dir=tmp_path / "run") as guard:
        for step in range(3):
            optimizer.zero_grad()
            loss = model(noise(step, 256, 4)).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
    seen = next(iter(gradguard.read_run(tmp_path / "run").activations.values()))
    assert {3, 4} <= set(seen.dead_units[0].tolist())
    assert len(seen.dead_units[0]) == round(float(seen.dead[0]) * 16)
