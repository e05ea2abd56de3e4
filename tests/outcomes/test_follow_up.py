"""Every intervention is judged once, `horizon` steps later, by the losses and by what came back."""

import pytest

from gradguard.outcomes.follow_up import Outcomes
from gradguard.records import Change, Finding, Intervention


def done(seq=0, step=0, diagnosis="nonfinite", rule="r", rung=0):
    change = Change(summary="")
    return Intervention(
        seq=seq, step=step, rule=rule, rung=rung, diagnosis=diagnosis, remedy="skip_step", change=change
    )


def waiting(*interventions, horizon=10, losses=(1.0,) * 10, num_losses=10):
    outcomes = Outcomes(horizon)
    for intervention in interventions:
        outcomes.add(intervention, list(losses), num_losses)
    return outcomes


def records(judged):
    return [record for _, record in judged]


def test_an_intervention_is_judged_when_its_horizon_is_over_and_only_once():
    outcomes = waiting(done(seq=3, step=5, rule="q", rung=2))
    assert outcomes.next_due == 15
    assert outcomes.collect(14, [0.9] * 10, 20) == []
    ((entry, outcome),) = outcomes.collect(15, [0.9] * 10, 20)
    assert (outcome.of, outcome.step, outcome.verdict, outcome.horizon) == (3, 15, "helped", 10)
    assert (outcome.loss_before, outcome.loss_after, outcome.loss_noise) == (1.0, 0.9, 0.05)
    assert (entry.rule, entry.rung, entry.remedy, entry.step) == ("q", 2, "skip_step", 5)
    assert outcomes.collect(100, [0.9] * 10, 20) == []
    assert outcomes.next_due > 10**9


def test_several_are_judged_in_the_order_in_which_they_were_made():
    outcomes = waiting(*[done(seq, step) for seq, step in enumerate([0, 1, 1, 4])])
    assert [outcome.of for outcome in records(outcomes.collect(11, [], 10))] == [0, 1, 2]
    assert outcomes.next_due == 14
    assert [outcome.of for outcome in records(outcomes.collect(20, [], 10))] == [3]


def test_recurrences_are_later_findings_of_the_same_diagnosis():
    outcomes = waiting(done(0, 5, "nonfinite"), done(1, 5, "loss_spike"))
    for diagnosis, step in [("nonfinite", 5), ("nonfinite", 6), ("nonfinite", 7), ("divergence", 7)]:
        outcomes.saw(diagnosis, step)
    judged = records(outcomes.collect(15, [1.0] * 10, 20))
    assert [(outcome.recurrences, outcome.last_seen) for outcome in judged] == [(2, 7), (0, None)]


@pytest.mark.parametrize(("since", "after"), [(0, None), (2, None), (3, 7.0), (6, 7.0), (9, 7.0), (40, 1.0)])
def test_only_losses_since_the_intervention_count(since, after):
    """The window still holds those from before when steps were skipped."""
    outcomes = waiting(done())
    (outcome,) = records(outcomes.collect(10, [1.0] * 11 + [7.0] * 9, 10 + since))
    assert outcome.loss_after == after


def test_what_was_done_on_a_lower_rung_is_closed_as_soon_as_the_rule_had_to_climb():
    skips = [done(seq, seq) for seq in range(3)]
    outcomes = waiting(*skips, done(3, 2, rule="other"), done(4, 3, rung=1))
    higher = done(4, 3, rung=1).model_copy(update={"remedy": "rollback"})
    judged = records(outcomes.climbed(higher, [1.0] * 10, 10))
    assert [(outcome.of, outcome.verdict) for outcome in judged] == [(seq, "no_effect") for seq in range(3)]
    assert {outcome.reason for outcome in judged} == {"it took a rollback at step 3"}
    assert [outcome.horizon for outcome in judged] == [3, 2, 1]
    assert [entry.seq for entry in outcomes.pending] == [3, 4]
    assert outcomes.climbed(higher, [1.0] * 10, 10) == []


def test_what_is_not_known_is_written_as_nothing():
    outcomes = waiting(done(), horizon=1, losses=(), num_losses=0)
    (outcome,) = records(outcomes.collect(1, [], 0))
    assert (outcome.loss_before, outcome.loss_after, outcome.loss_noise) == (None, None, None)
    assert outcome.verdict == "unknown"


def test_a_run_that_ends_early_leaves_its_judgements_unknown():
    outcomes = waiting(done(step=5), horizon=50)
    (outcome,) = records(outcomes.give_up(20, [0.1] * 10, 20))
    assert (outcome.verdict, outcome.horizon, outcome.loss_after) == ("unknown", 15, 0.1)
    assert "run ended" in outcome.reason
    assert outcomes.give_up(20, [0.1] * 10, 20) == []


def test_what_a_run_is_stopped_for_was_not_helped_by_what_was_done_against_it_before():
    outcomes = waiting(done(0, 5), done(1, 6, "loss_spike"), done(2, 8), horizon=50)
    judged = records(outcomes.give_up(9, [], 10, stopped_by=Finding(diagnosis="nonfinite", step=8)))
    assert [outcome.verdict for outcome in judged] == ["no_effect", "unknown", "unknown"]
    assert judged[0].reason == "the run was stopped for the same, 3 steps later"


def test_saved_outcomes_wait_for_the_same():
    outcomes = waiting(done(step=5))
    outcomes.saw("nonfinite", 6)
    twin = Outcomes(horizon=10)
    twin.load_state_dict(outcomes.state_dict())
    assert twin.pending == outcomes.pending
    outcomes.saw("nonfinite", 7)
    assert records(twin.collect(15, [1.0], 10))[0].recurrences == 1
    assert records(outcomes.collect(15, [1.0], 10))[0].recurrences == 2
