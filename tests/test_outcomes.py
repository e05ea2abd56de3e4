"""Every intervention is judged once, `horizon` steps later, by the loss and by what came back."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.outcomes import BETTER, WORSE, Outcomes, judge


LAW = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("before", "after", "recurrences", "verdict"),
    [
        (1.0, 0.5, 0, "helped"),
        (1.0, 1.0, 0, "helped"),
        (1.0, 1.0, 1, "no_effect"),
        (1.0, 1.4, 0, "no_effect"),
        (1.0, 3.0, 0, "worse"),
        (1.0, 3.0, 4, "worse"),
        (-2.0, -2.5, 0, "helped"),
        (-2.0, 1.0, 0, "worse"),
        (math.nan, 1.0, 0, "unknown"),
        (1.0, math.nan, 0, "unknown"),
        (1.0, math.inf, 0, "unknown"),
        (math.nan, math.nan, 2, "no_effect"),
    ],
)
def test_the_verdict_follows_from_the_losses_and_the_recurrences(before, after, recurrences, verdict):
    found, reason = judge(before, after, recurrences, 50)
    assert found == verdict
    assert ("did not come back" in reason) == (recurrences == 0)
    assert "50 steps" in reason


@LAW
@given(st.floats(0.01, 100), st.floats(0, 1000), st.integers(0, 3))
def test_a_higher_loss_is_never_a_better_verdict(before, after, recurrences):
    rank = ["worse", "no_effect", "helped"]
    verdicts = [rank.index(judge(before, loss, recurrences, 50)[0]) for loss in (after, after * 1.5, after * 10)]
    assert verdicts == sorted(verdicts, reverse=True)


def test_the_limits_are_those_of_the_loss_ratio():
    assert judge(1.0, BETTER - 0.01, 0, 50)[0] == "helped"
    assert judge(1.0, BETTER + 0.01, 0, 50)[0] == "no_effect"
    assert judge(1.0, WORSE + 0.01, 0, 50)[0] == "worse"


def test_an_intervention_is_judged_when_its_horizon_is_over_and_only_once():
    outcomes = Outcomes(horizon=10)
    outcomes.add(seq=3, step=5, diagnosis="loss_spike", loss_before=1.0)
    assert outcomes.next_due == 15
    assert outcomes.collect(14, 0.9) == []
    (outcome,) = outcomes.collect(15, 0.9)
    assert (outcome.of, outcome.step, outcome.verdict, outcome.horizon) == (3, 15, "helped", 10)
    assert (outcome.loss_before, outcome.loss_after) == (1.0, 0.9)
    assert outcomes.collect(100, 0.9) == []
    assert outcomes.next_due > 10**9


def test_several_are_judged_in_the_order_in_which_they_were_made():
    outcomes = Outcomes(horizon=10)
    for seq, step in enumerate([0, 1, 1, 4]):
        outcomes.add(seq, step, "nonfinite", math.nan)
    assert [outcome.of for outcome in outcomes.collect(11, math.nan)] == [0, 1, 2]
    assert outcomes.next_due == 14
    assert [outcome.of for outcome in outcomes.collect(20, math.nan)] == [3]


def test_recurrences_are_later_findings_of_the_same_diagnosis():
    outcomes = Outcomes(horizon=10)
    outcomes.add(0, 5, "nonfinite", 1.0)
    outcomes.add(1, 5, "loss_spike", 1.0)
    for diagnosis, step in [("nonfinite", 5), ("nonfinite", 6), ("nonfinite", 7), ("divergence", 7)]:
        outcomes.saw(diagnosis, step)
    assert [outcome.recurrences for outcome in outcomes.collect(15, 1.0)] == [2, 0]


def test_what_is_not_known_is_written_as_nothing():
    outcomes = Outcomes(horizon=1)
    outcomes.add(0, 0, "nonfinite", math.nan)
    (outcome,) = outcomes.collect(1, math.inf)
    assert (outcome.loss_before, outcome.loss_after, outcome.verdict) == (None, None, "unknown")


def test_a_run_that_ends_early_leaves_its_judgements_unknown():
    outcomes = Outcomes(horizon=50)
    outcomes.add(0, 5, "nonfinite", 1.0)
    (outcome,) = outcomes.give_up(20, 0.1)
    assert (outcome.verdict, outcome.horizon, outcome.loss_after) == ("unknown", 15, 0.1)
    assert "run ended" in outcome.reason
    assert outcomes.give_up(20, 0.1) == []


def test_saved_outcomes_wait_for_the_same():
    outcomes = Outcomes(horizon=10)
    outcomes.add(0, 5, "nonfinite", 1.0)
    outcomes.saw("nonfinite", 6)
    twin = Outcomes(horizon=10)
    twin.load_state_dict(outcomes.state_dict())
    outcomes.saw("nonfinite", 7)
    assert twin.collect(15, 1.0)[0].recurrences == 1
    assert outcomes.collect(15, 1.0)[0].recurrences == 2
