"""rebaseline empties the rolling statistics, and undoes the rollback that showed the level to be new."""

import copy

import torch
from aim import aim, aim_at, finding_about, keep_state, remember
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES


Rebaseline = REMEDIES.get("rebaseline")
Rollback = REMEDIES.get("rollback")


def test_it_asks_for_fresh_statistics_and_changes_nothing_else():
    target = aim(torch.ones(2))
    remember(target, [1.0, 1.0], size=7)
    grad = target.params[0].grad.clone()
    change = Rebaseline().apply(target, finding_about(), None)
    assert target.is_rebaselined
    assert not target.is_skipped
    assert torch.equal(target.params[0].grad, grad)
    assert (change.before, change.after) == ({"window_steps": 7}, {"window_steps": 0})


def test_without_statistics_there_is_nothing_to_forget_and_no_error():
    target = aim(torch.ones(2))
    assert Rebaseline().apply(target, finding_about(), None).before == {"window_steps": 0}


def batch_norm():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()


def everything(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))


def test_a_recent_rollback_is_undone_to_the_last_bit_with_its_buffers():
    model, optimizer = batch_norm()
    target = aim_at(model, optimizer)
    keep_state(target)
    train(model, optimizer, 3)
    target.buffers.accept()
    expected = everything(model, optimizer)
    Rollback().apply(target, finding_about(), None)
    train(model, optimizer, 2)
    target.buffers.accept()
    model(torch.randn(8, 3))
    target.begin()
    change = Rebaseline().apply(target, finding_about(), None)
    torch.testing.assert_close(everything(model, optimizer), expected, rtol=0, atol=0)
    assert target.is_skipped
    assert "rollback is undone" in change.summary
    model(torch.randn(8, 3))
    target.buffers.restore()
    torch.testing.assert_close(model.state_dict(), expected[0], rtol=0, atol=0)


def test_a_rollback_that_is_long_past_stands():
    model, optimizer = batch_norm()
    target = aim_at(model, optimizer)
    keep_state(target)
    train(model, optimizer, 3)
    Rollback().apply(target, finding_about(), None)
    target.begin()
    target.stats.step = 1000
    expected = everything(model, optimizer)
    Rebaseline().apply(target, finding_about(), None)
    torch.testing.assert_close(everything(model, optimizer), expected, rtol=0, atol=0)
    assert not target.is_skipped


def test_the_present_level_becomes_the_normal_one():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rule = {"when": {"exploding_gradient": {"window": 20, "warmup": 10}}, "do": "rebaseline"}
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=[rule], sinks=[])) as guard:
        for step in range(60):
            optimizer.zero_grad()
            (model(torch.ones(1, 2)) * (1.0 if step < 30 else 1e4)).sum().backward()
            optimizer.step()
        acted = [(record.step, record.remedy) for record in guard.records if record.kind == "intervention"]
    assert acted == [(30, "rebaseline")]
