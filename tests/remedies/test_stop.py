"""stop drops the step and raises TrainingStopped once the record is complete."""

import copy
import math

import pytest
import torch
from aim import aim, finding_about

import gradguard
from gradguard.contracts import REMEDIES


Stop = REMEDIES.get("stop")


def test_it_drops_the_step_and_asks_for_the_end():
    target = aim(torch.ones(2))
    target.stats.step = 7
    change = Stop().apply(target, finding_about(), None)
    assert (target.is_stopped, target.is_skipped, target.params[0].grad) == (True, True, None)
    assert change.before == {"step": 7}


def test_the_error_carries_the_finding_and_the_weights_are_those_of_the_last_accepted_step(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "stop"}], sinks=[])
    guard = gradguard.attach(model, optimizer, policy, run_dir=tmp_path / "run")
    weights = copy.deepcopy(model.state_dict())
    model(torch.full((1, 2), math.nan)).sum().backward()
    with pytest.raises(gradguard.TrainingStopped, match="stopped at step 0") as caught:
        optimizer.step()
    assert caught.value.finding.diagnosis == "nonfinite"
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    run = gradguard.read_run(guard.run_dir)
    assert [(record.step, record.remedy) for record in run.interventions] == [(0, "stop")]
    assert not optimizer._optimizer_step_pre_hooks
