"""Another policy over a recorded run: what is known, what is a guess, and what is not known at all."""

import json
import math
import re

import pytest
from deferring import train
from replay.replaying import decisions, replay

import gradguard
from gradguard.errors import PolicyError, RecordError
from gradguard.policy.load import load_policy
from gradguard.record.directory import RunDirectory
from gradguard.record.replay import REPLAY_FILE, NotedWeights
from gradguard.record.statistics import Flag
from gradguard.replay.backtest import Backtest
from gradguard.replay.difference import compare
from gradguard.replay.recorded import Recorded
from gradguard.replay.unknowns import gaps, unmeasured


LOSSES = {15: math.nan, 30: 1e6, 40: math.nan}


def policy(*rules, **more):
    return gradguard.Policy.model_validate({"rules": list(rules), "sinks": [], **more})


SKIP = {"name": "drop", "when": {"nonfinite": {"where": "batch"}}, "do": "skip_step"}
SPIKE = {"name": "spike", "when": {"loss_spike": {"warmup": 5}}, "do": "skip_step"}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run with two NaN and a spike between, all of them skipped."""
    path = tmp_path_factory.mktemp("run") / "run"
    train(policy(SKIP, SPIKE), "immediate", losses=LOSSES, run_dir=path)
    return path


def against(path, other):
    recorded, replayed = replay(path, other)
    return compare(recorded, other, replayed), replayed


def test_by_its_own_policy_all_is_the_same(run_dir):
    comparison, replayed = against(run_dir, Recorded(run_dir).policy)
    assert comparison.is_same
    assert comparison.is_exact
    assert comparison.first_difference is comparison.hypothetical_from is None
    assert comparison.num_same == len(decisions(replayed.records)) == 3
    assert comparison.counts == {"loss_spike": (1, 1, 1, 1), "nonfinite": (2, 2, 2, 2)}


def test_a_rule_by_another_name_is_the_same_but_not_to_the_letter(run_dir):
    comparison, _ = against(run_dir, policy({**SKIP, "name": "other"}, SPIKE))
    assert comparison.is_same
    assert not comparison.is_exact


def test_from_the_first_other_action_on_it_is_a_guess(run_dir):
    comparison, _ = against(run_dir, policy(SKIP, {**SPIKE, "do": {"scale_lr": {"factor": 0.5}}}))
    assert not comparison.is_same
    assert comparison.first_difference == 30
    assert comparison.hypothetical_from == 31
    (difference,) = comparison.differences
    assert [str(one) for one in difference.recorded] == ["skip_step [critical]"]
    assert [str(one) for one in difference.replayed] == ["scale_lr {factor: 0.5} [critical]"]
    assert not difference.is_hypothetical
    assert comparison.num_same == 2


def test_what_differs_after_that_is_marked(run_dir):
    comparison, _ = against(run_dir, policy(SKIP, SPIKE, mode="observe"))
    assert [(d.steps, d.is_hypothetical) for d in comparison.differences] == [
        ((15,), False),
        ((30,), True),
        ((40,), True),
    ]


def test_a_policy_that_stops_ends_the_replay(run_dir):
    comparison, replayed = against(run_dir, policy(SPIKE, {**SKIP, "do": "stop"}))
    assert replayed.stopped_at == 15
    assert replayed.num_steps == 16
    assert comparison.counts["loss_spike"] == (1, 0, 1, 0)


def test_telling_more_changes_no_course(run_dir):
    told = {"name": "told", "when": {"nonfinite": {"where": "any"}}, "do": "notify"}
    comparison, _ = against(run_dir, policy(SKIP, SPIKE, told))
    assert not comparison.is_same
    assert comparison.hypothetical_from is None


def always(**limit):
    return {"name": "always", "when": "always", "do": {"clip_norm": limit}}


def test_clips_for_every_step_are_a_difference_where_one_acts(run_dir):
    rows = gradguard.read_run(run_dir).statistics
    is_taken = (rows["flags"] & Flag.SKIPPED_BY_GUARD) == 0
    norms, steps = rows["global_norm"][is_taken], rows["step"][is_taken]
    limit = 1.0001 * float(sorted(norms)[-6])
    comparison, _ = against(run_dir, policy(SKIP, SPIKE, always(max_norm=limit)))
    assert not comparison.is_same
    assert not comparison.is_exact
    assert comparison.first_difference == comparison.routine.first == steps[norms > limit][0]
    assert comparison.hypothetical_from == steps[norms > limit][0] + 1
    assert (comparison.routine.num_recorded, comparison.routine.num_replayed) == (0, 5)
    assert comparison.routine.num_judged == len(steps)


def test_clips_for_every_step_that_never_act_make_another_policy_and_no_difference(run_dir):
    comparison, _ = against(run_dir, policy(SKIP, SPIKE, always(max_norm=1e30)))
    assert (comparison.is_same, comparison.is_exact, comparison.routine) == (True, False, None)
    assert comparison.hypothetical_from is None


@pytest.mark.parametrize("delivery", ["immediate", "deferred"])
@pytest.mark.parametrize("limit", [0.5, {"median_times": 0.9, "window": 5}, {"quantile": 0.6}], ids=str)
def test_on_paper_the_rules_for_every_step_do_what_they_did_in_the_run(tmp_path, limit, delivery):
    own = policy(SKIP, SPIKE, always(max_norm=limit))
    train(own, delivery, losses=LOSSES, run_dir=tmp_path / "run")
    rows = gradguard.read_run(tmp_path / "run").statistics
    clipped = rows["step"][rows["clip_coef"] < 1.0].tolist()
    assert 0 < len(clipped) < len(rows["step"])
    assert against(tmp_path / "run", own)[0].is_exact
    comparison, _ = against(tmp_path / "run", policy(SKIP, SPIKE))
    assert comparison.first_difference == min(clipped)
    assert (comparison.routine.num_recorded, comparison.routine.num_replayed) == (len(clipped), 0)
    named = against(tmp_path / "run", policy(SKIP, SPIKE, {**always(max_norm=limit), "name": "other"}))[0]
    assert named.is_exact


def test_what_no_record_holds_is_taken_to_act_at_every_step(run_dir):
    other = policy(SKIP, SPIKE, {"name": "cut", "when": "always", "do": {"clip_value": {"max_value": 1.0}}})
    comparison, replayed = against(run_dir, other)
    assert comparison.routine.assumed == ("clip_value",)
    assert comparison.routine.num_replayed == replayed.num_steps - 3


def test_windows_of_another_size_are_made_of_the_recorded_numbers(tmp_path):
    """A run by one policy, replayed by another, finds what a run by the other finds, where nothing is changed."""
    rules = [{"when": {"exploding_gradient": {"window": 30, "warmup": 12, "ratio": 5}}, "do": "notify"}]
    others = [{"when": {"exploding_gradient": {"window": 10, "warmup": 5, "ratio": 3}}, "do": "notify"}]
    losses = {20: 1e4, 35: 30.0, 44: 1e3}
    for name, own in ("first", rules), ("second", others):
        train(own, "immediate", losses=losses, optimizer="adamw", run_dir=tmp_path / name)
    _, replayed = replay(tmp_path / "first", policy(*others))
    expected = decisions(gradguard.read_run(tmp_path / "second").records)
    assert len(expected) > 1
    assert expected != decisions(gradguard.read_run(tmp_path / "first").records)
    assert decisions(replayed.records) == expected


def test_a_clip_on_paper_says_when_there_was_nothing_to_clip(run_dir):
    clip = {"name": "spike", "when": {"loss_spike": {"warmup": 5}}, "do": {"clip_norm": {"max_norm": 1e30}}}
    _, replayed = replay(run_dir, policy(SKIP, clip))
    record = next(record for record in replayed.records if getattr(record, "remedy", "") == "clip_norm")
    assert (record.kind, record.reason) == ("withheld", "unavailable")
    clip["do"] = {"clip_norm": {"max_norm": 0.5}}
    _, replayed = replay(run_dir, policy(SKIP, clip))
    record = next(record for record in replayed.records if getattr(record, "remedy", "") == "clip_norm")
    assert record.change.after["norm"] == pytest.approx(0.5, rel=1e-4)


def test_a_remedy_that_no_record_can_answer_for_is_taken_to_be_possible(run_dir):
    for remedy in ("rollback", "restart", "zero_nonfinite", {"reinitialize": {}}, "capture"):
        _, replayed = replay(run_dir, policy({**SKIP, "do": remedy}))
        assert {record.kind for record in replayed.records} <= {"intervention", "outcome"}
        assert replayed.faults == []


def test_a_rule_about_parameters_that_there_are_not_is_refused(run_dir):
    with pytest.raises(PolicyError, match="no parameter"):
        Backtest(Recorded(run_dir), policy({**SKIP, "parameters": ["surprise.*"]}))


def test_a_run_without_a_step_is_refused(tmp_path):
    RunDirectory.create(tmp_path / "run").finish()
    with pytest.raises(RecordError, match="no step"):
        Recorded(tmp_path / "run")


def test_what_was_not_measured_is_said(run_dir):
    recorded = Recorded(run_dir)
    assert gaps(recorded) == unmeasured(recorded, recorded.policy) == []
    other = policy(
        {"when": "dead_units", "do": "notify"},
        {"when": {"nonfinite": {"where": "microbatch"}}, "do": "drop_microbatch"},
        monitor={"probe_every": 7, "parameters": ["body.*"]},
    )
    told = " ".join(unmeasured(recorded, other))
    assert "activations were not probed in the run: dead_units may find less" in told
    assert "the run measured the parameters *" in told
    assert "every 50 steps, not every 7" in told
    assert "none can be dropped on paper" in told


def test_a_record_from_before_replays_is_replayed_as_far_as_it_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(NotedWeights, "are", lambda noted, norms: False)  # probes told them all themselves
    train("default", "immediate", losses={20: math.nan, 30: 1e6}, run_dir=tmp_path / "run")
    (tmp_path / "run" / REPLAY_FILE).unlink()
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    for layout in info["layouts"]:
        del layout["groups"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    recorded, replayed = replay(tmp_path / "run")
    assert [record.step for record in replayed.records if record.kind == "intervention"] == [
        record.step for record in recorded.run.interventions
    ]
    assert "made before replays" in gaps(recorded)[0]


def test_lines_that_cannot_be_read_are_said_and_left_out(run_dir, tmp_path):
    train("default", "immediate", losses={20: math.nan}, run_dir=tmp_path / "run")
    path = tmp_path / "run" / REPLAY_FILE
    path.write_text(path.read_text() + '{"row":3}\nnot JSON\n{"row":1,"kind":"surprise"}\n{"torn')
    recorded, replayed = replay(tmp_path / "run")
    assert len(gaps(recorded)) == 3
    assert all(re.match(rf"{REPLAY_FILE}:\d+ cannot be read", gap) for gap in gaps(recorded))
    assert len(decisions(replayed.records)) == len(decisions(recorded.run.records)) > 0


def test_a_process_that_was_killed_leaves_what_can_be_replayed(tmp_path):
    """Rows that were in the buffer are missing at the end; notes about them have nothing to say."""

    def stop_writing(run, step):
        if step == 40:
            run.guard.directory.statistics._write = lambda: None

    path = tmp_path / "run"
    train("default", "immediate", losses={20: math.nan, 35: math.nan, 45: math.nan}, around=stop_writing, run_dir=path)
    recorded, replayed = replay(path)
    assert 20 < replayed.num_steps == recorded.num_rows < 45
    known = [told for told in decisions(recorded.run.records) if '"step":20' in told]
    assert known == decisions(replayed.records)[: len(known)] != []


def test_presets_replay_any_run(run_dir):
    for name in ("default", "observe", "pretrain", "finetune", "rnn", "repair"):
        comparison, replayed = against(run_dir, load_policy(name))
        assert replayed.faults == []
        assert not comparison.is_same
