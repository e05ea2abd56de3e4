"""notify calls the user's function with the finding, once, and changes nothing."""

import math

import torch
from aim import aim, finding_about

import gradguard
from gradguard.contracts import REMEDIES


Notify = REMEDIES.get("notify")


def test_the_function_gets_the_finding():
    told = []
    target = aim(torch.ones(2))
    target.notify = told.append
    finding = finding_about()
    change = Notify().apply(target, finding, None)
    assert told == [finding]
    assert "your notify function was called" in change.summary


def test_without_a_function_it_is_only_recorded():
    assert Notify().apply(aim(torch.ones(2)), finding_about(), None).summary == "nothing was changed"


def test_nothing_is_changed():
    target = aim(torch.tensor([3.0, 4.0]))
    Notify().apply(target, finding_about(), None)
    assert target.params[0].grad.tolist() == [3.0, 4.0]
    assert (target.is_skipped, target.is_stopped, target.effects) == (False, False, {})


def test_a_function_that_fails_is_recorded_and_does_not_stop_the_training():
    def fail(finding):
        raise ConnectionError("no network")

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": ["notify", "skip_step"]}], sinks=[])
    with gradguard.attach(model, optimizer, policy, notify=fail) as guard:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 2), math.nan)).sum().backward()
            optimizer.step()
            assert guard.last.skipped
            assert [(record.remedy, record.reason) for record in guard.last.withheld] == [("notify", "failed")]
        errors = [record for record in guard.records if getattr(record, "event", "") == "internal_error"]
        assert len(errors) == 1
        assert "no network" in errors[0].message
