"""The verdict on an intervention: what came back, and whether the loss is where its usual noise would have it."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradguard.outcomes.verdict import FEW, LEAST, WORSE, Level, judge, tolerance
from gradguard.printable import short


LAW = settings(max_examples=100, deadline=None, derandomize=True)
RANK = ["worse", "no_effect", "helped"]


def level(median, spread=0.0, count=50):
    return Level(median, spread, count)


def verdict(before, after, recurrences=0, horizon=50, spread=0.0, after_count=50):
    return judge(level(before, spread), level(after, spread, after_count), recurrences, horizon)[0]


@pytest.mark.parametrize(
    ("before", "after", "recurrences", "expected"),
    [
        (1.0, 0.5, 0, "helped"),
        (1.0, 1.0, 0, "helped"),
        (1.0, 1.04, 0, "helped"),
        (1.0, 1.1, 0, "no_effect"),
        (1.0, 1.3, 0, "worse"),
        (1.0, 3.0, 50, "worse"),
        (-2.0, -2.5, 0, "helped"),
        (-2.0, 1.0, 0, "worse"),
        (0.0, 0.0, 0, "helped"),
        (math.nan, 1.0, 0, "unknown"),
        (1.0, math.nan, 0, "unknown"),
        (math.nan, math.nan, 2, "unknown"),
        (math.nan, math.nan, 40, "no_effect"),
    ],
)
def test_the_verdict_follows_from_the_losses_and_the_recurrences(before, after, recurrences, expected):
    found, reason = judge(level(before), level(after), recurrences, 50)
    assert found == expected
    assert ("did not come back" in reason) == (recurrences == 0)
    assert "50 steps" in reason


def test_what_comes_back_now_and_then_is_borne_and_what_stays_is_not():
    """A bad batch in five is passed over and the rest is learnt from; what comes back every third step is not cured."""
    assert verdict(1.0, 1.0, recurrences=1) == "helped"
    assert verdict(1.0, 1.0, recurrences=int(FEW * 50)) == "helped"
    assert verdict(1.0, 1.0, recurrences=int(FEW * 50) + 1) == "no_effect"
    assert verdict(1.0, 1.0, recurrences=15) == "no_effect"
    assert verdict(1.0, 1.0, recurrences=50) == "no_effect"


def test_a_run_that_learns_all_the_same_was_helped_however_often_it_came_back():
    assert verdict(1.0, 0.5, recurrences=50) == "helped"
    assert verdict(1.0, 0.97, recurrences=50) == "no_effect"


@pytest.mark.parametrize(("before", "spread", "after"), [(2050.0, 1300.0, 0.61), (10.0, 3.0, 4.0), (1.0, 2.0, 0.4)])
def test_a_loss_that_fell_a_lot_is_never_called_as_before_however_noisy_it_had_been(before, spread, after):
    found, reason = judge(level(before, spread, 5), level(after), 0, 50)
    assert found == "helped"
    assert "as before" not in reason
    assert reason.endswith(f"back from {short(before)} to {short(after)}")


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.98), (-1.0, -1.02), (-1.0, -3.0), (0.0, 0.0), (-1.0, 0.2)])
def test_a_loss_below_zero_or_near_what_it_was_is_not_said_to_be_back(before, after):
    assert "back from" not in judge(level(before, 1.0), level(after), 0, 50)[1]


def test_a_rise_within_the_usual_noise_is_none():
    assert verdict(1.0, 1.3, spread=0.0) == "worse"
    assert verdict(1.0, 1.3, spread=0.2) == "no_effect"
    assert verdict(1.0, 1.3, spread=0.5) == "helped"


def test_few_losses_prove_less_than_many():
    assert verdict(1.0, 1.25, spread=0.1, after_count=50) == "no_effect"
    assert verdict(1.0, 1.15, spread=0.1, after_count=50) == "no_effect"
    assert verdict(1.0, 1.15, spread=0.1, after_count=5) == "helped"


@pytest.mark.parametrize("count", range(LEAST))
def test_too_few_losses_are_no_level(count):
    assert math.isnan(Level.of([1.0] * count).median)
    assert "too few" in judge(level(1.0), Level.of([1.0] * count), 0, 50)[1]
    assert "no loss" in judge(Level.of([]), Level.of([]), 0, 50)[1]


@LAW
@given(st.lists(st.floats(-1e6, 1e6), min_size=LEAST, max_size=60))
def test_a_level_is_the_median_and_the_median_deviation(losses):
    found = Level.of(losses)
    middle = statistics.median(losses)
    assert found == Level(middle, 1.4826 * statistics.median(abs(loss - middle) for loss in losses), len(losses))


@LAW
@given(st.floats(-100, 100), st.floats(0, 100), st.integers(0, 60), st.floats(0, 50), st.integers(3, 50))
def test_a_higher_loss_is_never_a_better_verdict(before, rise, recurrences, spread, count):
    verdicts = [
        RANK.index(judge(level(before, spread), level(before + up, spread, count), recurrences, 60)[0])
        for up in (-rise, 0.0, rise / 2, rise, 5 * rise)
    ]
    assert verdicts == sorted(verdicts, reverse=True)


@LAW
@given(st.floats(-100, 100), st.floats(-100, 100), st.integers(0, 60), st.floats(0, 50))
def test_more_recurrences_are_never_a_better_verdict(before, after, recurrences, spread):
    fewer, more = (RANK.index(judge(level(before, spread), level(after, spread), r, 60)[0]) for r in (recurrences, 60))
    assert more <= fewer


@LAW
@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0, 10), st.sampled_from([0.5, 4.0]))
def test_the_unit_of_the_loss_does_not_matter(before, after, spread, unit):
    rise = abs(after - before)
    noise = tolerance(level(before, spread), 50)
    assume(all(abs(rise - limit * noise) > 1e-9 * noise for limit in (1.0, WORSE)))
    one, other = (judge(level(before * k, spread * k), level(after * k, spread * k), 0, 50)[0] for k in (1.0, unit))
    assert one == other


@pytest.mark.parametrize("count", [5, 15, 50])
def test_noise_alone_is_called_a_harm_in_one_of_a_hundred_cases_at_most(count):
    random = np.random.default_rng(0)
    verdicts = [
        judge(Level.of(random.normal(3.0, 0.5, 50).tolist()), Level.of(random.normal(3.0, 0.5, count).tolist()), 0, 50)[
            0
        ]
        for _ in range(1000)
    ]
    assert verdicts.count("helped") >= 990
    assert "worse" not in verdicts


def test_a_lasting_harm_of_three_deviations_is_seen():
    random = np.random.default_rng(0)
    before = [Level.of(random.normal(3.0, 0.1, 50).tolist()) for _ in range(200)]
    after = [Level.of(random.normal(3.3, 0.1, 50).tolist()) for _ in range(200)]
    assert "helped" not in {judge(b, a, 0, 50)[0] for b, a in zip(before, after, strict=True)}
