"""A dropped micro-batch leaves no trace: the step is that of a loop that never saw it and divides by the others."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from aim import aim, finding_about
from guarded import noise
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES, Unavailable


DropMicrobatch = REMEDIES.get("drop_microbatch")
RULES = [{"when": "nonfinite", "do": "drop_microbatch"}]
PARTS = 4


class Net(nn.Module):
    """The second branch is used by odd micro-batches only."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.even, self.odd = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, inputs, is_odd):
        return (self.odd if is_odd else self.even)(self.norm(inputs))


class Run:
    """Gradient accumulation over four micro-batches, some of which may be bad.

    Args:
        bad: {(step, part)}.
        is_guarded: else the loop knows which are bad, leaves them out and divides by the number of the others.
    """

    def __init__(self, bad, is_guarded=True, rules=RULES, set_to_none=True, is_observed=True, **options):
        torch.manual_seed(0)
        self.model = Net()
        make = options.pop("optimizer", lambda params: torch.optim.AdamW(params, lr=0.01))
        self.optimizer = make(self.model.parameters())
        policy = gradguard.Policy(rules=rules, sinks=[], **options.pop("policy", {}))
        self.guard = gradguard.attach(self.model, self.optimizer, policy, **options) if is_guarded else None
        self.bad, self.set_to_none, self.is_observed = bad, set_to_none, is_observed

    def loss(self, step, part):
        inputs = noise(step * PARTS + part, 8, 3)
        if (step, part) in self.bad:
            inputs[0, 0] = math.nan
        return self.model(inputs, part % 2).square().mean()

    def train(self, steps):
        for step in steps:
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
            parts = [part for part in range(PARTS) if self.guard is not None or (step, part) not in self.bad]
            for part in parts:
                loss = self.loss(step, part)
                (loss / len(parts)).backward()
                if self.guard is not None and self.is_observed:
                    self.guard.observe(loss)
            if parts:
                self.optimizer.step()
        return self

    def acted(self):
        return [(r.step, r.remedy) for r in self.guard.records if r.kind == "intervention"]

    def state(self):
        return [self.model.state_dict(), self.optimizer.state_dict()["state"]]


PATTERNS = {
    "first": {(12, 0)},
    "middle": {(12, 2)},
    "last": {(12, 3)},
    "two in a row": {(12, 0), (12, 1)},
    "all of one branch": {(12, 0), (12, 2)},
    "all but one": {(12, 0), (12, 2), (12, 3)},
    "several steps": {(5, 1), (12, 0), (13, 3), (20, 2)},
}


@pytest.mark.parametrize("bad", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("is_observed", [True, False])
def test_the_run_is_that_without_the_bad_micro_batches(bad, set_to_none, is_observed):
    run = Run(bad, set_to_none=set_to_none, is_observed=is_observed).train(range(30))
    assert run.acted() == [(step, "drop_microbatch") for step in sorted({step for step, _ in bad})]
    oracle = Run(bad, is_guarded=False, set_to_none=set_to_none).train(range(30))
    torch.testing.assert_close(run.state(), oracle.state(), rtol=1e-5, atol=1e-7)


def test_where_the_mean_needs_no_factor_it_is_that_run_bit_for_bit():
    """Three of four: the factor is 4/3, which rounds. Two of four: it is 2, which does not."""
    run = Run({(12, 1), (12, 2)}).train(range(30))
    oracle = Run({(12, 1), (12, 2)}, is_guarded=False).train(range(30))
    torch.testing.assert_close(run.state(), oracle.state(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    ],
)
def test_of_other_optimizers_too(make):
    bad = {(5, 0), (7, 3)}
    run, oracle = Run(bad, optimizer=make).train(range(12)), Run(bad, is_guarded=False, optimizer=make).train(range(12))
    torch.testing.assert_close(run.state(), oracle.state(), rtol=1e-5, atol=1e-7)


def test_a_step_of_which_nothing_is_left_is_skipped_without_a_trace():
    bad = {(12, part) for part in range(PARTS)}
    run = Run(bad).train(range(30))
    assert run.acted() == [(12, "drop_microbatch")]
    assert "all 4 micro-batches were dropped: step skipped" in run.guard.records[1].change.summary
    oracle = Run(bad, is_guarded=False).train([step for step in range(30) if step != 12])
    torch.testing.assert_close(run.state(), oracle.state(), rtol=0, atol=0)


def test_a_healthy_run_is_bit_for_bit_the_unguarded_one(bits):
    run, plain = Run(set()).train(range(30)), Run(set(), is_guarded=False).train(range(30))
    assert run.acted() == []
    assert bits(run.model, run.optimizer) == bits(plain.model, plain.optimizer)


def test_the_record_says_how_many_and_the_loss_is_that_of_the_others():
    run = Run({(12, 1)}).train(range(13))
    (record,) = [record for record in run.guard.records if record.kind == "intervention"]
    assert record.change.summary == "1 of 4 micro-batches dropped, the mean is over the other 3"
    assert record.change.after["global_norm"] == pytest.approx(record.change.before["global_norm"] * 4 / 3)
    assert record.finding.message == "1 of 4 micro-batches got NaN or Inf gradients and was taken back."
    assert math.isfinite(run.guard._pipeline.stats.loss)


def test_a_batch_whose_step_was_never_taken_does_not_count():
    run = Run({(0, 2), (9, 0)})
    for part in range(PARTS):
        (run.loss(0, part) / PARTS).backward()
    run.train([9])
    change = next(record.change for record in run.guard.records if record.kind == "intervention")
    assert (change.before["microbatches"], change.after["microbatches"]) == (4, 3)


def test_a_gradient_that_is_asked_for_and_not_accumulated_is_no_micro_batch():
    run = Run({(0, 1)})
    for part in range(PARTS):
        torch.autograd.grad(run.loss(1, part), [run.model.norm.weight])
        (run.loss(0, part) / PARTS).backward()
    run.optimizer.step()
    assert run.guard.last.interventions[0].change.before["microbatches"] == 4


@pytest.mark.parametrize("rule", [{"budget": 1}, {"cooldown": 20}, {"min_severity": "critical"}])
def test_where_the_rule_would_not_act_the_micro_batch_stays(rule):
    """What is withheld must be as without the guard."""
    rules = [{"name": "drop", "when": {"nonfinite": {"where": "microbatch"}}, "do": "drop_microbatch", **rule}]
    bad = {(3, 1), (8, 1)} if "min_severity" not in rule else {(8, 1)}
    run = Run(bad, rules=rules).train(range(10))
    assert run.acted() == ([(3, "drop_microbatch")] if len(bad) > 1 else [])
    assert bool(run.model.even.weight.isnan().any() | run.model.odd.weight.isnan().any())


def test_observing_changes_nothing():
    run = Run({(8, 1)}, policy={"mode": "observe"}).train(range(10))
    plain = Run(set())
    plain.guard.close()
    plain.bad = {(8, 1)}
    plain.train(range(10))
    torch.testing.assert_close(run.state(), plain.state(), rtol=0, atol=0, equal_nan=True)


def test_a_ladder_climbs_from_it():
    rules = [{"when": "nonfinite", "do": "drop_microbatch", "escalate": [{"after": 2, "within": 9, "do": "skip_step"}]}]
    run = Run({(3, 1), (5, 1), (7, 1)}, rules=rules).train(range(10))
    assert run.acted() == [(3, "drop_microbatch"), (5, "drop_microbatch"), (7, "skip_step")]
    assert all(bool(param.isfinite().all()) for param in run.model.parameters())


def test_a_graver_verdict_of_another_rule_skips_the_step():
    rules = [*RULES, {"name": "skip", "when": {"nonfinite": {"where": "any"}}, "do": "skip_step"}]
    run = Run({(3, 1)}, rules=rules).train(range(5))
    assert run.acted() == [(3, "skip_step")]
    assert [r.reason for r in run.guard.records if r.kind == "withheld"] == ["superseded"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda params: torch.optim.LBFGS(params), "several times a step"),
        (lambda params: _with_main_grad(list(params)), "accumulated or used elsewhere"),
        (lambda params: _with_hook(list(params)), "accumulated or used elsewhere"),
    ],
)
def test_where_it_cannot_be_done_this_is_said_at_attach_and_the_step_is_skipped(make, reason):
    run = Run({(3, 1)}, optimizer=make)
    (note,) = [note for note in run.guard.records[0].data["notes"] if "no micro-batch can be dropped" in note]
    assert reason in note
    if isinstance(run.optimizer, torch.optim.SGD):
        run.train(range(5))
        summary = next(record.change.summary for record in run.guard.records if record.kind == "intervention")
        assert summary == "no micro-batch could be told apart: step skipped"
        oracle = Run({(3, part) for part in range(PARTS)}, is_guarded=False, optimizer=make).train([0, 1, 2, 4])
        torch.testing.assert_close(run.state(), oracle.state(), rtol=0, atol=0)


def _with_main_grad(params):
    params[0].main_grad = None
    return torch.optim.SGD(params, lr=0.1)


def _with_hook(params):
    params[0].register_post_accumulate_grad_hook(lambda param: None)
    return torch.optim.SGD(params, lr=0.1)


def test_with_a_scaler_or_sparse_gradients_it_is_not_done():
    for make, options, reason in (
        (Net, {"scaler": torch.amp.GradScaler("cpu")}, "GradScaler"),
        (lambda: nn.Embedding(3, 2, sparse=True), {}, "sparse"),
    ):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = gradguard.attach(model, optimizer, gradguard.Policy(rules=RULES, sinks=[]), **options)
        assert any(reason in note for note in guard.records[0].data["notes"])
        assert guard._pipeline.target.microbatches is None


def test_in_distributed_training_it_is_not_done(tmp_path):
    """Sharded parameters need a process group, too."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        notes = Run(set()).guard.records[0].data["notes"]
    finally:
        dist.destroy_process_group()
    assert "no micro-batch can be dropped: in distributed training every rank would drop other ones" in notes


def test_it_cannot_mend_a_damaged_model():
    target = aim(torch.ones(2))
    target.stats.bad_state = ("p0",)
    with pytest.raises(Unavailable, match="p0 itself is not finite"):
        DropMicrobatch().apply(target, finding_about(), None)


def test_a_condition_that_does_not_look_at_micro_batches_is_refused():
    for when in ("exploding_gradient", {"nonfinite": {"where": "batch"}}):
        with pytest.raises(ValueError, match=r"'drop_microbatch' acts on micro-batches.* use one of: nonfinite"):
            gradguard.Policy(rules=[{"when": when, "do": "drop_microbatch"}])


def test_closing_takes_every_hook_off_and_a_copy_of_the_model_has_none():
    run = Run({(3, 1)}).train(range(2))
    twin = copy.deepcopy(run.model)
    twin(noise(0, 8, 3) * math.nan, 0).sum().backward()
    assert bool(twin.even.weight.grad.isnan().any())
    run.guard.close()
    run.optimizer.zero_grad()
    run.loss(3, 1).backward()
    assert bool(run.model.odd.weight.grad.isnan().any())


def test_a_fault_of_its_own_costs_the_following_and_not_the_training(monkeypatch):
    from gradguard.optimizer import microbatches

    def broken(tensors):
        raise RuntimeError("broken on purpose")

    run = Run(set())
    monkeypatch.setattr(microbatches, "nonfinite_tensors", broken)
    run.train(range(5))
    faults = [record.message for record in run.guard.records if getattr(record, "event", "") == "internal_error"]
    assert faults == ["following micro-batches failed: RuntimeError('broken on purpose')"]
    plain = Run(set(), is_guarded=False).train(range(5))
    torch.testing.assert_close(run.state(), plain.state(), rtol=0, atol=0)


def test_parameters_that_join_later_are_followed_too():
    run = Run({(6, 1)})
    run.train(range(3))
    extra = nn.Parameter(torch.ones(2))
    run.optimizer.add_param_group({"params": [extra]})
    run.train(range(3, 5))
    (extra * math.nan).sum().backward()
    run.optimizer.zero_grad()
    for part in range(PARTS):
        (extra * (math.nan if part == 1 else 1.0)).sum().backward()
    run.optimizer.step()
    assert run.guard.last.interventions[0].change.summary.startswith("1 of 4 micro-batches dropped")
    assert bool(extra.isfinite().all())
