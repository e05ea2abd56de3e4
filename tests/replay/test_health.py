"""Which runs are healthy enough for `gradguard tune`."""

import math

import pytest
from deferring import train

import gradguard
from gradguard.replay.health import ailments


def run_of(path, policy="default", **options):
    train(policy, "immediate", run_dir=path / "run", **options)
    return gradguard.read_run(path / "run")


def test_a_run_without_trouble_has_none(tmp_path):
    assert ailments(run_of(tmp_path)) == []


def test_a_rule_that_acted_is_no_sign_by_itself(tmp_path):
    run = run_of(tmp_path, losses={30: 1e6})
    assert run.interventions
    assert ailments(run) == []


@pytest.mark.parametrize("policy", ["default", []], ids=["default", "no rules"])
def test_a_gradient_that_is_not_finite_is_one_whether_or_not_a_rule_saw_it(tmp_path, policy):
    (told,) = ailments(run_of(tmp_path, policy, losses={20: math.nan}, steps=21))
    assert told == "NaN or Inf (nonfinite) at step 20"


def test_a_state_that_was_set_back_is_one(tmp_path):
    rule = {"when": {"loss_spike": {"warmup": 5}}, "do": "rollback"}
    assert ailments(run_of(tmp_path, [rule], losses={40: 1e6})) == ["rollback against loss_spike at step 40"]


def test_an_end_before_its_time_is_one(tmp_path):
    rule = {"when": {"loss_spike": {"warmup": 5}}, "do": "stop"}
    assert ailments(run_of(tmp_path, [rule], losses={30: 1e6})) == ["its policy stopped it"]
