"""Real drills: what policies are worth, in few steps."""

import math
from functools import cache

import pytest
import torch

from gradguard.audit.read import read_run
from gradguard.contracts import Diagnosis, Remedy
from gradguard.drill.drill import drill, num_runs
from gradguard.drill.kinds import KINDS, find_kinds
from gradguard.drill.model import Task
from gradguard.drill.train import parameter_names, train
from gradguard.policy.load import load_policy
from gradguard.policy.schema import Policy
from gradguard.records import Finding


STEPS = 150
SOME = ("nan-batch", "lr-spike")


def drilled(policy, *names, **options):
    return drill(policy, find_kinds(names), num_steps=STEPS, **options)


@cache
def default():
    return drilled(load_policy("default"))


def test_the_default_policy_leaves_a_healthy_run_alone_and_recovers_from_every_kind_of_fault():
    done = default()
    assert done.healthy.is_untouched
    assert len(done.struck) == len(KINDS)
    assert {struck.kind: struck.verdict for struck in done.struck if struck.verdict != "recovered"} == {
        struck.kind: "harmless" for struck in done.struck if not struck.without.is_lost(done.healthy.clean)
    }
    assert sum(struck.verdict == "recovered" for struck in done.struck) >= 10
    assert done.is_passed
    assert done.notes == ()


@pytest.mark.parametrize(
    ("kind", "found", "late", "main"),
    [
        ("nan-batch", "nonfinite", 0, "skip_step"),
        ("norm-batch", "variance_spike", 0, "skip_step"),
        ("nan-burst", "nonfinite", 0, "rollback"),
        ("exploding-gradient", "exploding_gradient", 0, "clip_norm"),
        ("nan-weight", "nonfinite", 0, "rollback"),
        ("lr-spike", "loss_spike", 1, "rollback"),
    ],
)
def test_what_it_found_and_when_and_its_main_remedy(kind, found, late, main):
    struck = {struck.kind: struck for struck in default().struck}[kind]
    assert (struck.seen.found, struck.late, struck.seen.done[0][0]) == (found, late, main)


def test_what_harms_nobody_is_not_found():
    struck = {struck.kind: struck for struck in default().struck}["zero-gradient"]
    assert (struck.seen.found, struck.late, struck.seen.done, struck.verdict) == ("", None, (), "harmless")


def test_observe_finds_and_changes_nothing():
    done = drilled(load_policy("observe"), *SOME)
    assert done.healthy.is_untouched
    for struck in done.struck:
        assert struck.verdict == "not recovered"
        assert struck.guarded.fingerprint == struck.without.fingerprint
        assert struck.seen.done == ()
        assert struck.seen.instead == "would skip_step"
    assert not done.is_passed


def test_a_policy_without_rules_finds_nothing():
    (struck,) = drilled(Policy(), "nan-batch").struck
    assert (struck.verdict, struck.seen.found, struck.guarded.stopped) == ("not found", "", "")
    assert math.isnan(struck.guarded.held_out)


def test_a_policy_that_stops_has_stopped_and_says_why():
    rules = [{"when": "nonfinite", "do": "stop"}]
    done = drilled(Policy(rules=rules), "nan-batch")
    (struck,) = done.struck
    assert (struck.verdict, struck.guarded.num_steps) == ("stopped", struck.at)
    assert "loss is NaN" in struck.guarded.stopped
    assert "gradguard-drill-" not in struck.guarded.stopped
    assert done.is_passed


def test_rules_for_every_step_touch_the_healthy_run_on_purpose():
    rules = [{"name": "clip", "when": "always", "do": {"clip_norm": {"max_norm": 1.0}}}]
    done = drilled(Policy(rules=rules), "exploding-gradient")
    assert not done.healthy.is_untouched
    assert (done.healthy.routine, done.healthy.actions) == (("clip",), ())
    assert [struck.verdict for struck in done.struck] == ["recovered"]
    assert done.is_passed


class Jumpy(Diagnosis[None]):
    """Alarms once in every run, healthy or not."""

    name = "jumpy"
    at: int = 30

    def init(self, table, rows):
        return None

    def update(self, state, stats):
        return state, Finding(diagnosis=self.name, step=stats.step) if stats.step == self.at else None


def test_a_rule_that_acts_on_a_healthy_run_fails_the_drill():
    done = drilled(Policy(rules=[{"name": "jumpy", "when": Jumpy(), "do": "skip_step"}]), "zero-gradient")
    assert not done.is_passed
    assert done.healthy.actions == ("rule 'jumpy' at step 30: skip_step",)


def test_what_is_found_in_the_healthy_run_too_is_not_due_to_the_fault():
    done = drilled(Policy(rules=[{"when": Jumpy(at=60), "do": "notify"}]), "nan-batch")
    assert done.healthy.is_passed
    assert done.struck[0].verdict == "not found"


def test_the_names_of_another_model_are_no_error():
    rules = [
        {"name": "calm", "when": "exploding_gradient", "parameters": ["wte.*"], "do": {"rescale": {"factor": 0.1}}}
    ]
    done = drilled(Policy(rules=rules), "exploding-gradient")
    assert ["wte.*" in note for note in done.notes] == [True]
    assert done.struck[0].seen.done[0][0] == "rescale"


def test_policies_that_need_a_directory_and_a_fused_optimizer_are_drilled():
    options = {"snapshots": {"where": "disk"}, "monitor": {"sync": "deferred"}}
    rules = [
        {"name": "weights", "when": {"nonfinite": {"where": "state"}}, "do": "rollback"},
        {"name": "batch", "when": {"nonfinite": {"where": "batch"}}, "do": "skip_step"},
    ]
    done = drilled(Policy(rules=rules, **options), "nan-batch", "nan-weight")
    assert [struck.verdict for struck in done.struck] == ["recovered", "recovered"]


class Broken(Remedy):
    """Fails."""

    name = "broken"

    def apply(self, target, finding, rows):
        raise KeyError("no such thing")


@pytest.mark.parametrize("answer", ["continue", "raise"])
def test_a_plugin_that_fails_is_told(answer):
    policy = Policy(rules=[{"when": "nonfinite", "do": Broken()}], on_internal_error=answer)
    done = drilled(policy, "nan-batch")
    (struck,) = done.struck
    assert struck.verdict == "not recovered"
    assert "no such thing" in struck.guarded.failed + "".join(done.notes)


def test_the_seed_decides_all():
    """Compared as text, in which NaN equals NaN."""
    one, same = (drilled(Policy(), "bit-flip-weight", seed=3) for _ in range(2))
    assert repr(one) == repr(same)
    assert train(Task(10, seed=3), seed=3) != train(Task(10, seed=4), seed=4)
    assert default().healthy.clean.fingerprint != one.healthy.clean.fingerprint


def test_the_records_are_kept_where_asked_and_every_step_is_told(tmp_path):
    steps = []
    done = drilled(load_policy("default"), "nan-batch", run_dir=tmp_path, on_step=lambda: steps.append(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["healthy", "nan-batch"]
    assert done.struck[0].guarded.recorded_in == tmp_path / "nan-batch"
    assert "skip_step" in {done.remedy for done in read_run(tmp_path / "nan-batch").interventions}
    assert len(steps) == num_runs(done.struck) * STEPS


def test_the_model_learns_what_can_be_learnt():
    task = Task(STEPS, seed=0)
    few = train(Task(10, seed=0), seed=0)
    assert train(task, seed=0).held_out < 0.8 * few.held_out
    assert "embedding.weight" in parameter_names()


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    train(Task(2, seed=0), seed=0)
    assert torch.get_num_threads() == before
