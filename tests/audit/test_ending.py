"""A run is judged by how it ended, and nothing is said of it that was not looked at."""

import numpy as np
import pytest
from made_runs import ACTED, act, add_rows, judge, start_run

from gradguard.audit.read import read_run
from gradguard.audit.responses import responses
from gradguard.audit.summary import summarise
from gradguard.record.statistics import Flag


LOST = ACTED | Flag.SKIPPED_BY_GUARD


@pytest.fixture
def ended(tmp_path):
    """The summary of a run that `write(run)` has written."""

    def make(write, status="closed"):
        run = start_run(tmp_path / "exp")
        write(run)
        run.finish(status)
        return summarise(read_run(run.path))

    return make


def test_a_run_that_ends_in_nan_is_not_cured_however_much_helped_on_the_way(ended):
    def write(run):
        for step in range(10, 190, 2):
            judge(run, act(run, step, "nonfinite", "skip_step"), step + 5)
        is_bad = set(range(10, 190, 2)) | set(range(191, 200))
        add_rows(run, range(200), loss=lambda s: np.nan if s in is_bad else 1.0, flags=lambda s: LOST * (s in is_bad))

    summary = ended(write)
    assert summary.ending.kind == "not_cured"
    assert summary.headline.startswith(
        "Not cured: 99 of 200 steps were thrown away, 29 of the last 50 among them, and the last 9 losses are NaN."
    )
    assert "The loss went from 1 to NaN" in summary.headline


@pytest.mark.parametrize(("num_lost", "kind"), [(5, "cured"), (6, "not_cured")])
def test_a_run_that_throws_steps_away_to_the_end_is_not_cured(ended, num_lost, kind):
    def write(run):
        judge(run, act(run, 10, "nonfinite", "skip_step"), 60)
        lost = range(150, 150 + 2 * num_lost, 2)
        add_rows(run, range(200), flags=lambda s: LOST * (s in lost))

    assert ended(write).ending.kind == kind


def test_cured_is_only_said_when_the_last_word_on_everything_was_good(ended):
    def write(verdicts):
        def write(run):
            for step, (diagnosis, verdict) in enumerate(verdicts):
                record = act(run, 10 + step, diagnosis, "rollback")
                if verdict:
                    judge(run, record, 60 + step, verdict)
            add_rows(run, range(200))

        return write

    cases = [
        ([("a", "no_effect"), ("a", "helped")], "cured"),
        ([("a", "helped"), ("b", "helped")], "cured"),
        ([("a", "helped"), ("b", "no_effect")], "partly"),
        ([("a", "helped"), ("a", "worse")], "not_cured"),
        ([("a", "unknown"), ("a", "helped")], "cured"),
        ([("a", "no_effect"), ("a", "unknown")], "so_far"),
        ([("a", "helped"), ("a", "unknown")], "so_far"),
        ([("a", "helped"), ("a", None)], "so_far"),
        ([("a", "unknown")], "unknown"),
    ]
    import shutil

    for verdicts, kind in cases:
        summary = ended(write(verdicts))
        assert summary.ending.kind == kind, verdicts
        assert ("helped both" in summary.headline) == (verdicts == cases[1][0])
        shutil.rmtree(summary.path)


def test_healthy_is_not_said_of_a_run_whose_loss_nobody_saw_or_that_began_absurdly(ended):
    assert "No loss was handed over" in ended(lambda run: add_rows(run, range(30), loss=np.nan)).headline


def test_healthy_is_not_said_of_a_run_that_began_absurdly(ended):
    headline = ended(lambda run: add_rows(run, range(90), loss=lambda s: 1.7e8 / (1 + s) ** 6)).headline
    assert headline.startswith("No alarm in 90 steps, but the loss started at 170 million")


def test_what_was_done_about_one_thing_at_one_step_is_one_event_everywhere(ended):
    def write(run):
        for remedy in ("notify", "scale_lr", "keep_clipping", "rollback"):
            act(run, 20, "nonfinite", remedy)
        act(run, 20, "loss_spike", "skip_step")
        add_rows(run, range(60))

    summary = ended(write)
    assert "The guard acted twice in 60 steps" in summary.headline
    assert [(group.remedies, group.count) for group in summary.responses] == [
        (("rollback", "scale_lr", "keep_clipping"), 1),
        (("skip_step",), 1),
    ]
    assert sum(row.count for row in summary.efficacy) == 2
    assert [event.remedies[0] for event in responses(read_run(summary.path).interventions)] == ["rollback", "skip_step"]


def test_what_is_still_changed_at_the_end_is_told_and_what_is_over_is_not(ended):
    from gradguard.records import Change

    def write(run):
        lr = Change(summary="", before={"factor": 1.0}, after={"factor": 0.1, "recover_steps": 0})
        limit = Change(summary="", after={"max_norm": 0.5, "until_step": 150})
        over = Change(summary="", after={"max_norm": 0.5, "until_step": 40})
        act(run, 5, remedy="scale_lr", change=lr)
        act(run, 5, remedy="keep_clipping", change=limit if limit_is_on else over)
        add_rows(run, range(60), lr_factor=0.1)

    limit_is_on = True
    assert ended(write).lasting == (
        "the learning rate is 0.1 of yours, for good",
        "the gradient norm is kept below 0.5 until step 150",
    )


def test_a_matter_says_what_was_found_and_what_to_do_and_blames_the_rate_that_jumped(ended):
    def write(run):
        act(run, 20, "loss_spike")
        act(run, 40, "loss_spike")
        add_rows(run, range(60), lr=lambda s: 30.0 if s == 19 else 0.1)

    (matter,) = ended(write).matters
    assert (matter.count, matter.first_step, matter.last_step) == (2, 20, 40)
    assert matter.message.startswith("The gradient norm of")
    assert matter.advice.startswith("Look at the learning-rate schedule: at step 19 the learning rate rose 300 times")
