import json

import numpy as np
import pytest

import gradguard
from gradguard.audit.headline import story_line
from gradguard.audit.read import read_run
from gradguard.audit.summary import summarise
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.encode import to_json
from gradguard.record.statistics import Flag
from gradguard.records import Cause, Change, Event, Finding, Intervention, Outcome, Withheld


@pytest.fixture
def record(tmp_path):
    """Record a run from rows of (loss, clip_coef, flags) and from records, and return its summary."""

    def make(rows=(), records=(), status="closed", policy=None):
        run = RunDirectory.create(tmp_path / "exp", info={"policy": policy or {}})
        run.write_layout(ParameterTable(["a"], [(1,)], ["float32"], [0]))
        for step, (loss, clip_coef, flags) in enumerate(rows):
            run.statistics.append(step, loss, 1.0, 1.0, 1.0, clip_coef, 1.0, flags, np.ones(1, np.float32))
        for item in records:
            run.journal.append(item)
        run.finish(status)
        return summarise(read_run(run.path))

    return make


def action(step, parameter="a", diagnosis="d", remedy="m"):
    finding = Finding(diagnosis=diagnosis, step=step, parameters=(parameter,), num_parameters=1)
    change = Change(summary="s")
    return Intervention(step=step, rule="r", diagnosis=diagnosis, remedy=remedy, finding=finding, change=change)


def test_steps_are_counted_once_by_who_skipped_them(record):
    both = Flag.SKIPPED_BY_GUARD | Flag.SKIPPED_BY_SCALER
    flags = [0, 0, Flag.SKIPPED_BY_GUARD, Flag.SKIPPED_BY_SCALER, both, Flag.STALE | Flag.FINDING]
    summary = record([(1.0, 1.0, flag) for flag in flags])
    assert (summary.num_steps, summary.first_step, summary.last_step) == (6, 0, 5)
    assert (summary.num_applied, summary.num_skipped_by_guard, summary.num_skipped_by_scaler) == (3, 2, 1)
    assert summary.num_stale == 1


def test_losses_that_are_not_finite_are_left_out_of_the_numbers(record):
    losses = [np.nan, 4.0, np.inf, *[3.0] * 30, *[1.0] * 49, 9.0]
    loss = record([(value, 1.0, 0) for value in losses]).loss
    assert (loss.num_observed, loss.first, loss.last, loss.median_last, loss.lowest) == (82, 4.0, 9.0, 1.0, 1.0)


def test_the_share_of_clipped_steps_is_told_with_the_usual_factor(record):
    summary = record([(1.0, coef, 0) for coef in (1.0, 0.5, 0.25, 0.125)])
    assert (summary.clip_share, summary.clip_median) == (0.75, 0.25)


def test_interventions_are_grouped_by_diagnosis_and_remedy(record):
    actions = [action(3, "a"), action(5, "b"), action(9, "b"), action(4, "c", remedy="n")]
    outcomes = [Outcome(of=0, verdict="helped"), Outcome(of=1, verdict="worse"), Outcome(of=3, verdict="unknown")]
    summary = record([(1.0, 1.0, 0)] * 10, [*actions, *outcomes])
    first, second = summary.interventions
    assert (first.diagnosis, first.remedy, first.count, first.first_step, first.last_step) == ("d", "m", 3, 3, 9)
    assert first.worst_parameter == "b"
    assert first.outcomes == {"helped": 1, "worse": 1}
    assert (second.remedy, second.outcomes) == ("n", {"unknown": 1})
    assert summary.outcomes == {"helped": 1, "unknown": 1, "worse": 1}
    assert summary.severities == {"warn": 4}


def test_what_was_withheld_is_grouped_by_reason(record):
    finding = Finding(diagnosis="d", step=1)
    items = [Withheld(step=n, diagnosis="d", reason=why, finding=finding) for n, why in enumerate(["budget"] * 2)]
    summary = record((), [*items, Withheld(step=7, diagnosis="d", reason="cooldown")])
    assert [(group.reason, group.count, group.last_step) for group in summary.withheld] == [
        ("budget", 2, 1),
        ("cooldown", 1, 7),
    ]


def test_the_headline_of_a_healthy_run_says_healthy(record):
    summary = record([(4.0 - step, 1.0, 0) for step in range(4)])
    assert summary.headline == "Healthy: 4 steps, nothing that needed the guard. The loss went from 4 to 2.5."


def test_the_headline_of_an_empty_run_says_that_there_is_nothing_to_judge(record):
    assert record().headline == "Nothing to judge: no step was taken."


def test_the_headline_tells_what_happened_and_whether_it_helped(record):
    outcomes = [Outcome(of=0, verdict="helped"), Outcome(of=1, verdict="no_effect")]
    summary = record([(np.nan, 1.0, 0)] * 10, [action(3), action(5), *outcomes], status="stopped")
    assert summary.headline == (
        "Not cured: what was done against d had no effect. The guard acted twice in 10 steps (d)."
        " The policy stopped it."
    )


def test_the_headline_tells_what_changed_the_run_apart_from_what_was_only_told(record):
    told = action(4, remedy="notify")
    assert record([(np.nan, 1.0, 0)] * 10, [told]).headline == (
        "Not healthy: the guard warned of d once in 10 steps, and changed nothing."
    )
    both = record([(np.nan, 1.0, 0)] * 10, [action(3), told, Outcome(of=0, verdict="helped")]).headline
    assert both == "Cured: nothing came back after step 3. The guard acted once in 10 steps (d) and warned of d once."


def test_the_headline_of_an_unjudged_action_says_so(record):
    assert record((), [action(3)]).headline.startswith("Not known whether it helped: it is not judged yet.")


def test_the_headline_of_a_watched_run_is_not_healthy(record):
    finding = Finding(diagnosis="d", step=1)
    items = [Withheld(step=1, diagnosis="d", remedy="m", reason="dry_run", finding=finding)]
    summary = record([(1.0, 1.0, 0)], items, policy={"mode": "observe"})
    assert summary.headline == "Not healthy, and only watched (mode: observe): d once in 1 step."


def test_faults_of_the_guard_itself_are_in_the_headline(record):
    errors = [Event(event="internal_error", message="disk full")] * 2
    summary = record([(1.0, 1.0, 0)], errors)
    assert summary.events == {"internal_error": 2}
    assert summary.internal_errors == ("disk full",)
    assert "The guard itself had 2 internal errors" in summary.headline


def test_a_summary_is_strict_json_and_holds_its_headline(record):
    summary = record([(1.0, 1.0, 0)], [action(0)])
    assert json.loads(to_json(summary))["headline"] == summary.headline


def test_the_same_run_gives_the_same_summary(recorded):
    assert summarise(read_run(recorded)) == summarise(read_run(recorded))


def test_a_run_whose_loss_ended_above_its_start_is_not_called_healthy(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gradguard.attach(model, optimizer, run_dir=tmp_path / "run") as guard:
        for step in range(100):
            optimizer.zero_grad()
            model(torch.ones(2, 1)).mean().backward()
            guard.observe(1.0 + step / 20)
            optimizer.step()
    headline = summarise(gradguard.read_run(tmp_path / "run")).headline
    assert not headline.startswith("Healthy")
    assert "ended above its start" in headline


def found(diagnosis, step, follows=None, severity="warn"):
    cause = None if follows is None else Cause(diagnosis=follows, step=0)
    finding = Finding(diagnosis=diagnosis, step=step, severity=severity, follows=cause)
    return Withheld(rule="r", step=step, diagnosis=diagnosis, remedy="m", reason="cooldown", finding=finding)


def test_the_story_is_told_in_order_with_arrows_from_cause_to_consequence(record):
    records = [
        found("exploding_gradient", 150),
        found("exploding_gradient", 151),
        found("collapsed_output", 200, "dead_units"),
        found("dead_units", 200, "exploding_gradient"),
        found("oscillation", 210, severity="info"),
        found("stale_gradients", 300),
    ]
    summary = record(records=records)
    assert story_line(summary) == (
        "step 150 exploding_gradient -> step 200 dead_units -> step 200 collapsed_output; step 300 stale_gradients"
    )
