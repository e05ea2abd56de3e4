"""skip_step makes torch's step a no-op and takes back what the forward wrote into the buffers."""

import copy
import math

import pytest
import torch
from aim import aim, aim_at, finding_about, keep_state
from torch import nn

from gradguard.contracts import REMEDIES


SkipStep = REMEDIES.get("skip_step")


def test_every_gradient_of_the_optimizer_is_dropped_whatever_the_rule_looks_at():
    target = aim(torch.ones(2), None, torch.ones(3))
    SkipStep().apply(target, finding_about(0), [0])
    assert [param.grad for param in target.params] == [None, None, None]
    assert target.is_skipped


@pytest.mark.parametrize("bad", [1.0, math.nan])
def test_neither_weights_nor_state_nor_buffers_know_of_the_batch(bad, bits):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).mean().backward()
        optimizer.step()
    target = aim_at(model, optimizer)
    keep_state(target)
    expected = bits(model, optimizer)
    optimizer.zero_grad()
    model(torch.ones(8, 3) * bad).mean().backward()
    change = SkipStep().apply(target, finding_about(), None)
    optimizer.step()
    assert bits(model, optimizer) == expected
    assert change.after == {"buffers_restored": 3}
    assert change.summary == "step skipped, 3 buffers restored"


def test_without_buffers_to_keep_it_skips_all_the_same():
    target = aim(torch.tensor([3.0, 4.0]))
    weights = copy.deepcopy(target.params[0].tolist())
    change = SkipStep().apply(target, None, None)
    target.optimizer.step()
    assert target.params[0].tolist() == weights
    assert (change.summary, change.before, change.after) == (
        "step skipped",
        {"global_norm": 5.0},
        {"buffers_restored": 0},
    )


def test_what_it_needs_is_asked_for():
    assert SkipStep.needs == {"buffers"}
    assert REMEDIES.get("rollback").needs == {"buffers", "snapshots"}
    assert REMEDIES.get("stop").needs == {"buffers"}
    assert REMEDIES.get("clip_norm").needs == set()
