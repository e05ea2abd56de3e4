"""The record holds every intervention and nothing else, and a guard without a cause is not to be noticed."""

import math

import pytest
import torch
from guarded import regression, train
from hypothesis import given, settings
from hypothesis import strategies as st

import gradguard
from gradguard.record.statistics import Flag


@settings(max_examples=8, deadline=None, derandomize=True)
@given(nan_at=st.sets(st.integers(0, 59), max_size=6), spike_at=st.sets(st.integers(25, 59), max_size=3))
def test_there_is_one_record_for_every_step_that_was_changed_and_none_for_another(nan_at, spike_at, tmp_path_factory):
    def spoil(step, inputs, targets):
        if step in nan_at:
            return inputs, targets * math.nan
        return inputs, targets * (-1e4 if step in spike_at else 1.0)

    run = train(regression("sgd", spoil), 60, run_dir=tmp_path_factory.mktemp("run") / "run")
    run.guard.close()
    recorded = gradguard.read_run(run.guard.run_dir)
    skipping = {record.step for record in recorded.interventions if record.remedy in ("skip_step", "rollback")}
    assert skipping == set(range(60)) - set(run.applied)
    assert nan_at <= {finding.step for finding in recorded.findings}
    steps, flags = recorded.statistics["step"], recorded.statistics["flags"]
    assert steps.tolist() == list(range(60))
    assert set(steps[(flags & Flag.SKIPPED_BY_GUARD) > 0].tolist()) == skipping
    acted = {record.step for record in recorded.interventions}
    assert set(steps[(flags & Flag.INTERVENTION) > 0].tolist()) == acted
    assert [record.seq for record in recorded.records] == list(range(len(recorded.records)))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_a_run_without_a_cause_has_no_intervention_on_record_and_is_bit_identical(optimizer, tmp_path, bits):
    run = train(regression(optimizer), 120, run_dir=tmp_path / "run")
    run.guard.close()
    recorded = gradguard.read_run(tmp_path / "run")
    assert recorded.interventions == []
    assert recorded.findings == []
    assert [event.event for event in recorded.events] == ["attached", "closed"]
    plain = train(regression(optimizer), 120, is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(plain.model, plain.optimizer)
    assert recorded.statistics["loss"].tolist() == pytest.approx(plain.losses, rel=1e-6)


def test_a_record_in_memory_has_no_gaps_either():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer) as guard:
        for value in (1.0, float("nan"), 1.0, float("nan")):
            optimizer.zero_grad()
            loss = model(torch.full((4, 2), value)).mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
    assert len(guard.records) > 3
    assert [record.seq for record in guard.records] == list(range(len(guard.records)))
