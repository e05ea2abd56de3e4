"""The words: what broke, in which layer, what was done, whether it worked."""

import numpy as np
import pytest
from reported_runs import HOSTILE, NAN, PLATEAU, SPIKE, Recording

from gradguard.audit.rate_jump import rate_jump
from gradguard.audit.read import read_run
from gradguard.records import Cause, Change, Finding, Intervention, Outcome
from gradguard.report.content import describe
from gradguard.report.episodes import episodes, most_telling
from gradguard.report.suspects import suspect
from gradguard.report.timeline import timeline


def story_of(path):
    return describe(read_run(path), "run")


def test_a_sick_run_is_told_in_episodes(sick_run):
    told = story_of(sick_run)["episodes"]
    assert [(part["first"], part["last"]) for part in told] == [(SPIKE, SPIKE), (NAN, NAN + 2), (PLATEAU, PLATEAU)]
    spike, nan, plateau = told
    assert spike["where"] == [HOSTILE, "wte.weight"]
    assert spike["more"] == 2
    assert spike["did"] == [{"remedy": "clip_norm", "count": 1, "summary": f"norm of {HOSTILE} 100 -> 6"}]
    assert spike["worked"]["tone"] == "good"
    assert spike["advice"] == "Lower the learning rate."
    assert nan["worked"] == {"tone": "bad", "text": "It had no effect. It came back."}
    assert plateau["worked"]["tone"] == "open"


def test_the_four_questions_are_answered(sick_run):
    replies = {part["question"]: part for part in story_of(sick_run)["answers"]}
    assert replies["What broke?"]["answer"] == "exploding gradient, NaN or infinity (nonfinite), plateau"
    assert replies["Where?"]["answer"] in (HOSTILE, "h.0.attention.weight")
    assert replies["What did the guard do?"]["answer"] == "skip_step twice, clip_norm once"
    assert replies["Did it work?"]["answer"] == "In part"


@pytest.mark.parametrize(
    ("evidence", "place"),
    [
        ({"origin": "input", "origin_place": "x"}, "the input 'x'"),
        ({"origin": "loss"}, "the loss function"),
        ({"origin": "forward", "origin_after": "c", "origin_before": "d"}, "between 'c' and 'd'"),
        ({"origin": "unknown"}, ""),
    ],
)
def test_where_nan_came_in_is_the_place_when_no_layer_is_named(tmp_path, evidence, place):
    recording = Recording(tmp_path / "run")
    for step in range(30):
        recording.step(step)
    finding = Finding(diagnosis="nonfinite", step=20, severity="warn", message="NaN.", evidence=evidence)
    change = Change(summary="step skipped")
    recording.write(
        Intervention(step=20, rule="r", diagnosis="nonfinite", remedy="skip_step", finding=finding, change=change)
    )
    told = story_of(recording.finish())
    assert told["episodes"][0]["place"] == place
    assert told["answers"][1]["answer"] == (place or "In the run as a whole")


def test_a_healthy_run_says_so_and_how_close_it_came(healthy_run):
    told = story_of(healthy_run)
    assert told["episodes"] == []
    assert told["answers"][0]["answer"] == "Nothing"
    assert 1.0 < told["closest"]["ratio"] < 3.0


def test_an_empty_run_has_no_answers(empty_run):
    told = story_of(empty_run)
    assert (told["answers"], told["episodes"], told["closest"]) == ([], [], None)


def found(step, diagnosis="loss_spike", follows=None):
    return Finding(diagnosis=diagnosis, step=step, follows=follows)


def record(path, *parts):
    """Record (finding, remedy, verdict or None) in order."""
    run = Recording(path, ["a", "b"])
    for finding, remedy, verdict in parts:
        seq = run.write(
            Intervention(
                step=finding.step,
                rule="r",
                diagnosis=finding.diagnosis,
                remedy=remedy,
                finding=finding,
                change=Change(summary="done"),
            )
        )
        if verdict:
            run.write(Outcome(step=finding.step + 20, of=seq, verdict=verdict, horizon=20))
    return read_run(run.finish())


def test_what_follows_from_something_left_alone_is_of_its_episode(tmp_path):
    cause = Cause(diagnosis="vanishing_gradient", step=10)
    parts = [(found(10, "vanishing_gradient"), "notify", None), (found(500, "plateau", cause), "notify", None)]
    (episode,) = episodes(record(tmp_path / "run", *parts))
    assert [(part.diagnosis, part.follows) for part in episode.chain] == [
        ("vanishing_gradient", ""),
        ("plateau", "vanishing_gradient"),
    ]


def test_what_comes_long_after_something_was_done_is_an_episode_of_its_own(tmp_path):
    cause = Cause(diagnosis="loss_spike", step=10)
    parts = [(found(10), "skip_step", "helped"), (found(500, "nonfinite", cause), "skip_step", "helped")]
    assert len(episodes(record(tmp_path / "run", *parts))) == 2


def test_what_went_alike_is_told_once(tmp_path):
    parts = [(found(100 * number), "skip_step", "helped") for number in range(1, 9)]
    parts.append((found(2000), "skip_step", "worse"))
    first, other = episodes(record(tmp_path / "run", *parts))
    assert (first.first, first.alike, first.last_alike) == (100, 7, 800)
    assert other.first == 2000


def test_what_did_not_help_is_told_before_the_rest(tmp_path):
    parts = [(found(100 * number, f"d{number}"), "skip_step", "helped") for number in range(1, 9)]
    parts.append((found(2000), "skip_step", "worse"))
    told = most_telling(episodes(record(tmp_path / "run", *parts)), limit=2)
    assert [episode.first for episode in told] == [100, 2000]


@pytest.mark.parametrize(
    ("remedy", "verdict", "tone"),
    [
        ("skip_step", "helped", "good"),
        ("skip_step", "worse", "bad"),
        ("skip_step", None, "open"),
        ("notify", None, "open"),
        ("stop", None, "bad"),
    ],
)
def test_a_verdict_has_a_tone(tmp_path, remedy, verdict, tone):
    run = record(tmp_path / "run", (found(10), remedy, verdict))
    assert describe(run, "run")["episodes"][0]["worked"]["tone"] == tone


def test_a_layer_that_stood_out_is_named_where_the_finding_names_none(tmp_path):
    run = Recording(tmp_path / "run", ["a", "b", "c"])
    for step in range(30):
        scale = np.array([1.0, 40.0 if step == 29 else 1.0, 2.0])
        run.step(step, scale=scale)
    read = read_run(run.finish())
    line = timeline(read.statistics["step"])
    assert suspect(read, line, 29).name == "b"
    assert suspect(read, line, 20) is None
    assert suspect(read, line, 99) is None
    assert suspect(read, line, 2) is None


def test_a_learning_rate_that_jumped_just_before_is_told(tmp_path):
    run = Recording(tmp_path / "run", ["a"])
    for step in range(30):
        run.step(step, lr=0.3 if step == 20 else 0.001)
    columns = read_run(run.finish()).statistics
    jump = rate_jump(columns["step"], columns["lr"], 22)
    assert (jump.step, jump.before, jump.after) == (20, 0.001, 0.3)
    assert rate_jump(columns["step"], columns["lr"], 19) is None
    assert rate_jump(columns["step"], columns["lr"], 28) is None
    assert rate_jump(columns["step"], columns["lr"], 99) is None


def test_what_to_do_fits_what_came_before_and_is_of_the_same_diagnosis(tmp_path):
    run = Recording(tmp_path / "run", ["a", "b"])
    for step in range(120):
        run.step(step, lr=0.3 if step == 40 else 0.001)
    spike = Finding(diagnosis="loss_spike", step=41, advice="Look at the samples.")
    nan = Finding(diagnosis="nonfinite", step=100, message="The loss is NaN.")
    other = Finding(diagnosis="exploding_gradient", step=101, parameters=("a",), num_parameters=1, advice="Lower it.")
    for finding in (spike, nan, other):
        common = {"step": finding.step, "rule": "r", "diagnosis": finding.diagnosis, "finding": finding}
        run.write(Intervention(remedy="skip_step", change=Change(summary="done"), **common))
    first, second = describe(read_run(run.finish()), "run")["episodes"]
    assert first["before"] == "At step 40 the learning rate rose 300 times, from 0.001 to 0.3."
    assert "learning-rate schedule" in first["advice"]
    assert second["happened"] == "The loss is NaN."
    assert (second["where"], second["before"]) == ([], "")
    assert "Lower it." not in second["advice"]
    assert second["advice"]


def test_the_main_remedy_is_named_first_and_counted_once(tmp_path):
    parts = [(found(10), remedy, "helped") for remedy in ("scale_lr", "keep_clipping", "rollback")]
    told = describe(record(tmp_path / "run", *parts), "run")
    assert [part["remedy"] for part in told["episodes"][0]["did"]] == ["rollback", "scale_lr", "keep_clipping"]
    replies = {part["question"]: part for part in told["answers"]}
    assert replies["What did the guard do?"]["answer"] == "rollback once"
    assert replies["What did the guard do?"]["detail"].startswith("with scale_lr, keep_clipping")
    assert told["facts"]["interventions"] == 1
