"""What a record tells of a fault."""

import pytest

from gradguard.drill.seen import read_seen
from gradguard.policy.schema import Policy
from gradguard.records import Change, Event, Finding, Intervention, Withheld


class Record:
    """Has what is read of a run's record."""

    def __init__(self, findings=(), interventions=(), withheld=(), events=()):
        self.findings, self.interventions = list(findings), list(interventions)
        self.withheld, self.events = list(withheld), list(events)


POLICY = Policy(
    rules=[
        {
            "name": "r",
            "when": "loss_spike",
            "do": ["notify", "skip_step"],
            "escalate": [
                {"after": 2, "within": 5, "do": ["rollback", {"scale_lr": {"factor": 0.5}}]},
                {"after": 2, "within": 5, "do": "stop"},
            ],
        }
    ]
)


def found(diagnosis, step, severity="warn"):
    return Finding(diagnosis=diagnosis, step=step, severity=severity)


def did(remedy, step, rung=0, diagnosis="loss_spike"):
    return Intervention(
        rule="r", rung=rung, diagnosis=diagnosis, remedy=remedy, step=step, change=Change(summary="done")
    )


def withheld(reason, remedy="skip_step", step=50, diagnosis="loss_spike"):
    return Withheld(rule="r", diagnosis=diagnosis, remedy=remedy, reason=reason, step=step)


def seen(**parts):
    return read_seen(Record(**parts), POLICY, 50)


def test_what_came_before_the_fault_and_what_is_only_worth_knowing_is_left_out():
    told = seen(findings=[found("plateau", 49), found("plateau", 51, "info")], interventions=[did("skip_step", 49)])
    assert (told.found, told.found_at, told.done) == ("", None, ())


def test_the_first_finding_counts_and_at_one_step_the_one_that_was_acted_on():
    findings = [found("divergence", 53, "critical"), found("nonfinite", 52, "critical"), found("loss_spike", 52)]
    assert seen(findings=findings).found == "nonfinite"
    told = seen(findings=findings, interventions=[did("skip_step", 52)])
    assert (told.found, told.found_at) == ("loss_spike", 52)


def test_the_main_remedies_are_those_of_the_highest_rung_as_the_policy_orders_them():
    done = [did("skip_step", 50), did("skip_step", 51), did("scale_lr", 52, 1), did("rollback", 52, 1)]
    told = seen(findings=[found("loss_spike", 50)], interventions=[did("notify", 50), *done])
    assert told.done == (("rollback", 1), ("scale_lr", 1), ("skip_step", 2))
    assert told.instead == ""
    stopped = seen(findings=[found("loss_spike", 50)], interventions=[*done, did("stop", 53, 0)])
    assert stopped.done[0] == ("stop", 1)


@pytest.mark.parametrize(
    ("parts", "instead"),
    [
        ({"withheld": [withheld("dry_run", "notify"), withheld("dry_run")]}, "would skip_step"),
        ({"withheld": [withheld("below_severity")]}, "below severity"),
        ({"interventions": [did("notify", 50)]}, "told only"),
        ({"withheld": [withheld("cooldown", step=51)]}, ""),
    ],
)
def test_why_nothing_was_done(parts, instead):
    assert seen(findings=[found("loss_spike", 50)], **parts).instead == instead


def test_faults_of_its_own_are_told_once_each():
    events = [Event(event="internal_error", message="x failed")] * 2 + [Event(event="closed", message="closed")]
    assert seen(events=events).own_faults == ("x failed",)
