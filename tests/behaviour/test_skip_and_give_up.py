"""What a run of bad steps leads to: counted, bounded, and the parameters never touched by a bad one."""

import math

import pytest
import torch
from guarded import train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard


def one_weight(bad):
    """A weight whose loss is NaN at some steps."""

    def make():
        weight = nn.Parameter(torch.ones(2))

        def loss_at(step):
            return (weight - 2).square().sum() * (math.nan if step in bad else 1.0)

        return nn.ParameterList([weight]), torch.optim.SGD([weight], lr=0.1), loss_at

    return make


def patience(count, within):
    rule = {"when": "nonfinite", "do": "skip_step", "escalate": [{"after": count, "within": within, "do": "stop"}]}
    return gradguard.Policy.model_validate({"rules": [rule]})


def test_two_bad_steps_in_a_row_are_borne_and_a_third_stops_the_run_before_it_is_taken():
    """good, bad, bad, good, bad, bad, bad: the give-up is the configured one, never the bad update."""
    run = train(one_weight({1, 2, 4, 5, 6}), 8, policy=patience(2, within=2))
    assert run.acted == [
        *((step, "nonfinite", "skip_step") for step in (1, 2, 4, 5)),
        (6, "nonfinite", "stop"),
    ]
    assert run.applied == [0, 3]
    assert run.stopped.finding.step == 6
    assert run.is_finite


@settings(max_examples=25, deadline=None, derandomize=True)
@given(bad=st.sets(st.integers(0, 29)))
def test_any_sequence_of_good_and_bad_steps_is_counted_exactly_and_ends_finite(bad):
    """Without a ladder every bad step is skipped, every good one taken."""
    policy = gradguard.Policy.model_validate({"rules": [{"when": "nonfinite", "do": "skip_step"}]})
    run = train(one_weight(bad), 30, policy=policy)
    assert [step for step, _, _ in run.acted] == sorted(bad)
    assert run.applied == [step for step in range(30) if step not in bad]
    assert run.is_finite


@pytest.mark.parametrize("every", [2, 3, 4, 10])
def test_by_default_a_share_of_bad_batches_is_borne(every):
    bad = set(range(every - 1, 200, every))
    run = train(one_weight(bad), 200)
    assert run.stopped is None
    assert run.applied == [step for step in range(200) if step not in bad]


def test_by_default_a_run_without_hope_is_stopped_loudly_and_soon(lines):
    run = train(one_weight(set(range(40, 4000))), 400)
    assert run.stopped is not None
    assert run.stopped.finding.diagnosis == "nonfinite"
    assert len(run.losses) < 150
    assert run.is_finite
    assert any("stop" in line for line in lines)


def test_an_infinite_loss_with_finite_gradients_is_skipped_when_the_guard_knows_it():
    def make():
        model, optimizer, loss_at = one_weight(set())()
        return model, optimizer, lambda step: loss_at(step) + (math.inf if step == 5 else 0.0)

    run = train(make, 10)
    assert run.acted == [(5, "nonfinite", "skip_step")]
    assert train(make, 10, is_observed=False).acted == []
