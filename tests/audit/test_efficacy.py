"""What each remedy was worth over a run: counted by verdict, in numbers that can be checked by hand."""

import math

import numpy as np
import pytest

from gradguard.audit.efficacy import Efficacy
from gradguard.audit.read import read_run
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.statistics import Flag
from gradguard.records import Change, Finding, Intervention, Outcome, Withheld


HORIZON = 10


@pytest.fixture
def record(tmp_path):
    """Record a run from losses (None for a skipped step) and records; return it as it is read back."""

    def make(losses, records=(), steps=None):
        run = RunDirectory.create(tmp_path / "exp", info={"policy": {"horizon": HORIZON}})
        run.write_layout(ParameterTable(["a"], [(1,)], ["float32"], [0]))
        for step, loss in zip(range(len(losses)) if steps is None else steps, losses, strict=True):
            flags = Flag.SKIPPED_BY_GUARD if loss is None else 0
            value = math.nan if loss is None else loss
            run.statistics.append(step, value, 1.0, 1.0, 1.0, 1.0, 1.0, flags, np.ones(1, np.float32))
        for item in records:
            run.journal.append(item)
        run.finish()
        return read_run(run.path)

    return make


def found(step, diagnosis="d"):
    return Finding(diagnosis=diagnosis, step=step)


def action(step, remedy="m", diagnosis="d"):
    finding, change = found(step, diagnosis), Change(summary="s")
    return Intervention(step=step, rule="r", diagnosis=diagnosis, remedy=remedy, finding=finding, change=change)


def outcome(of, step, verdict, before=None, after=None, **more):
    noise = None if before is None else 0.1
    return Outcome(
        of=of,
        step=step + HORIZON,
        horizon=HORIZON,
        verdict=verdict,
        loss_before=before,
        loss_after=after,
        loss_noise=noise,
        **more,
    )


def held(step, reason, remedy="m", diagnosis="d"):
    return Withheld(
        step=step, rule="r", diagnosis=diagnosis, remedy=remedy, reason=reason, finding=found(step, diagnosis)
    )


def test_a_healthy_run_has_no_rows(record):
    assert record([1.0] * 20).efficacy == ()
    assert record([1.0] * 20, [held(3, "below_severity"), held(4, "superseded")]).efficacy == ()


def test_what_was_done_together_is_one_row_and_counted_once(record):
    actions = [action(step, remedy) for step in (5, 9) for remedy in ("notify", "scale_lr", "rollback")]
    outcomes = [outcome(seq, 5, "helped") for seq in (1, 2)]
    (row,) = record([1.0] * 40, actions + outcomes).efficacy
    assert (row.remedy, row.count, row.helped, row.waiting) == ("rollback + scale_lr", 2, 1, 1)


def test_there_is_a_row_for_each_diagnosis_and_remedy_with_its_verdicts(record):
    actions = [action(5), action(4, "n"), action(6), action(7), action(8), action(9, diagnosis="e")]
    judged = [(5, "helped"), (4, "no_effect"), (6, "worse"), (7, "unknown")]
    run = record([1.0] * 40, actions + [outcome(seq, *each) for seq, each in enumerate(judged)])
    assert run.efficacy == (
        Efficacy(diagnosis="d", remedy="m", count=4, helped=1, worse=1, unknown=1, waiting=1),
        Efficacy(diagnosis="d", remedy="n", count=1, no_effect=1),
        Efficacy(diagnosis="e", remedy="m", count=1, waiting=1),
    )


def test_what_only_tells_or_ends_the_run_or_is_routine_is_no_attempt(record):
    always = Intervention(step=2, rule="r", diagnosis="always", remedy="m", change=Change(summary="s"))
    assert record([1.0] * 20, [action(5, "notify"), action(6, "stop"), always]).efficacy == ()


def test_the_change_of_the_loss_is_the_median_of_the_relative_ones(record):
    pairs = [(1.0, 0.5), (2.0, 2.2), (-4.0, -5.0), (0.0, 3.0), (1.0, None)]
    actions = [action(step) for step in range(5)]
    run = record([1.0] * 40, actions + [outcome(i, i, "helped", *pair) for i, pair in enumerate(pairs)])
    assert run.efficacy[0].loss_change == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("losses", "last_seen", "expected"),
    [
        ([1.0] * 10, None, 1),
        ([1.11, 1.05] + [1.0] * 8, None, 2),
        ([None, None, 1.0] + [1.0] * 7, None, 3),
        ([1.0] * 10, 5 + 4, 5),
        ([1.0] * 4 + [None] + [3.0] + [1.0] * 4, 5 + 5, 7),
        ([9.0] * 10, None, None),
    ],
)
def test_a_run_has_recovered_when_the_loss_is_back_and_the_fault_is_not(record, losses, last_seen, expected):
    run = record([1.0] * 5 + [None] + losses, [action(5), outcome(0, 5, "helped", 1.0, 1.0, last_seen=last_seen)])
    assert run.efficacy[0].steps_to_recover == expected


def test_what_did_not_help_has_not_recovered(record):
    run = record([1.0] * 20, [action(5), outcome(0, 5, "no_effect", 1.0, 1.0)])
    assert run.efficacy[0].steps_to_recover is None


def test_of_a_step_that_was_taken_twice_the_last_time_counts(record):
    steps = [*range(16), *range(5, 16)]
    run = record([9.0] * 16 + [None] + [1.0] * 10, [action(5), outcome(0, 5, "helped", 1.0, 1.0)], steps)
    assert run.efficacy[0].steps_to_recover == 1


def test_what_was_left_alone_tells_what_passes_by_itself(record):
    """Two findings that passed, one that came with a lasting harm, and one too late to be judged."""
    records = [held(12, "cooldown"), held(25, "budget"), held(40, "dry_run"), held(55, "failed")]
    losses = [1.0] * 41 + [3.0] * 19
    (row,) = record(losses, records).efficacy
    assert (row.remedy, row.count, row.helped, row.worse, row.waiting) == ("", 4, 2, 1, 1)
    assert row.loss_change == 0.0
    assert row.steps_to_recover == 1


def test_what_keeps_coming_back_when_it_is_left_alone_is_no_success(record):
    (row,) = record([1.0] * 60, [held(step, "dry_run") for step in range(10, 60)]).efficacy
    assert (row.count, row.helped, row.no_effect, row.waiting) == (50, 0, 40, 10)


def test_a_finding_that_another_rule_acted_on_was_not_left_alone(record):
    rows = record([1.0] * 40, [action(12), held(12, "cooldown", "n"), held(20, "cooldown", "notify")]).efficacy
    assert [(row.remedy, row.count) for row in rows] == [("m", 1)]


def test_without_losses_what_was_left_alone_cannot_be_judged(record):
    (row,) = record([math.nan] * 40, [held(12, "cooldown")]).efficacy
    assert (row.unknown, row.loss_change, row.steps_to_recover) == (1, None, None)
