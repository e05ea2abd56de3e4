"""exploding_gradient: scale-free, never masked, never locked; also for norms that overflow and absurd SGD updates."""

import math

import numpy as np
import pytest
from feed import Feed, diagnose
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.evidence.trigger import Calm


LAW = settings(max_examples=30, deadline=None, derandomize=True)
RULE = {"exploding_gradient": {"window": 20, "warmup": 10, "zscore": 6, "ratio": 10, "extreme_ratio": 100}}


def noisy(count, level=1.0, seed=0, num_parameters=3):
    random = np.random.default_rng(seed)
    return (level * np.exp(0.1 * random.standard_normal((count, num_parameters)))).tolist()


def warmed_up(rule=RULE, **options):
    feed = diagnose(rule, **options)
    for norms in noisy(30, num_parameters=len(feed.table)):
        assert feed.step(norms) == []
    return feed


@LAW
@given(st.floats(1e-8, 1e8), st.integers(0, 100), st.floats(0, 0.4))
def test_noise_around_a_level_is_no_alarm_whatever_the_level(level, seed, noise):
    feed = diagnose(RULE)
    random = np.random.default_rng(seed)
    for _ in range(100):
        assert feed.step((level * np.exp(noise * random.standard_normal(3))).tolist()) == []


def test_an_extreme_norm_is_an_alarm_at_once():
    (finding,) = warmed_up().step(1e3)
    assert (finding.severity, finding.evidence["scope"]) == ("critical", "global")
    assert finding.value == pytest.approx(1e3 * math.sqrt(3))
    assert finding.baseline == pytest.approx(math.sqrt(3), rel=0.2)
    assert finding.threshold == pytest.approx(10 * finding.baseline)
    assert finding.evidence["z"] > 6
    assert finding.indices == ()


def test_a_high_norm_is_an_alarm_when_it_comes_twice_in_three_steps():
    feed = warmed_up()
    assert feed.step(30.0) == []
    assert feed.step(1.0) == []
    (finding,) = feed.step(30.0)
    assert finding.severity == "warn"


@pytest.mark.parametrize("steps_between", [2, 4])
def test_high_norms_that_are_further_apart_are_no_alarm(steps_between):
    feed = warmed_up()
    for _ in range(3):
        assert feed.step(30.0) == []
        assert feed.repeat(steps_between, 1.0) == []


def test_one_spike_does_not_hide_the_next():
    feed = warmed_up()
    assert all(feed.step(1e4) for _ in range(3))
    assert feed.step(1.0) == []
    assert feed.step(1e4)


def test_a_nan_hides_nothing():
    feed = warmed_up()
    feed.step(math.nan)
    assert feed.step(1e4)


@pytest.mark.parametrize("factor", [50.0, 1e4])
def test_after_a_lasting_change_of_level_the_alarm_is_released_within_a_window(factor):
    feed = warmed_up()
    alarms = [bool(feed.step(norms)) for norms in noisy(60, level=factor)]
    assert any(alarms[:10])
    assert not any(alarms[20:])


def test_after_the_release_the_new_level_is_guarded_as_well():
    feed = warmed_up()
    for norms in noisy(60, level=50.0):
        feed.step(norms)
    assert feed.step(50.0 * 1e3)


def test_a_norm_below_the_level_of_the_start_is_no_alarm():
    """A gradient that has shrunk to nearly nothing may jump back to what it was."""
    feed = warmed_up()
    feed.repeat(40, 1e-6)
    assert feed.step(0.5) == []
    assert feed.step(1e3)


def test_one_parameter_alone_is_named_worst_first():
    feed = warmed_up()
    (finding,) = feed.step([150.0, 1.0, 400.0])
    assert finding.evidence["scope"] == "global"
    feed = Feed({"when": RULE, "do": "notify", "parameters": ["p0", "p2"]})
    for norms in noisy(30):
        feed.step(norms)
    (finding,) = feed.step([150.0, 1.0, 400.0])
    assert (finding.parameters, finding.num_parameters, finding.indices) == (("p2", "p0"), 2, (2, 0))
    assert finding.evidence["scope"] == "parameters"


def test_a_parameter_whose_gradient_hardly_counts_is_only_worth_knowing():
    feed = diagnose(RULE)
    feed.repeat(30, [1.0, 1e-6, 1.0])
    (finding,) = feed.step([1.0, 1e-3, 1.0])
    assert (finding.severity, finding.parameters) == ("info", ("p1",))


def test_an_extreme_norm_is_believed_early():
    feed = diagnose(RULE)
    feed.repeat(5, 1.0)
    (finding,) = feed.step(1e3)
    assert finding.evidence["scope"] == "global"


def test_before_there_is_anything_to_compare_with_there_is_no_alarm():
    feed = diagnose(RULE)
    assert feed.step(1e-3) == []
    assert feed.step(1e6) == []


@pytest.mark.parametrize("window", [5, 10, 20])
def test_every_window_that_the_policy_takes_is_armed(window):
    """The default warm-up is longer than a short window; it must not disarm the rule for good."""
    feed = diagnose({"exploding_gradient": {"window": window}})
    feed.repeat(60, 1.0)
    assert feed.repeat(2, 50.0)


@pytest.mark.parametrize("norm", [1e37, 1e36])
def test_a_ratio_beyond_float32_is_an_alarm_like_any_other(norm):
    feed = diagnose(RULE)
    feed.repeat(30, 1e-4)
    (finding,) = feed.step(norm)
    assert finding.value / finding.baseline == pytest.approx(norm / 1e-4, rel=1e-5)


def test_norms_near_the_end_of_float32_are_judged_like_any_other():
    feed = diagnose(RULE, num_parameters=1)
    feed.repeat(30, [1e38])
    assert feed.step([1e38]) == []


def test_a_run_whose_norms_overflow_at_every_step_is_told_so_and_judged_on():
    feed = diagnose(RULE, num_parameters=1)
    assert len(feed.repeat(30, [1e39])) == 30
    assert feed.step([1.0]) == []


def test_a_norm_that_overflowed_is_named_although_all_entries_are_finite():
    (finding,) = diagnose(RULE).step([1.0, 1e40, 1.0])
    assert (finding.severity, finding.parameters, finding.num_parameters) == ("critical", ("p1",), 1)
    assert finding.value == pytest.approx(1e40)
    assert "overflowed" in finding.message


def test_an_overflow_outside_of_what_a_rule_looks_at_is_not_its_business():
    feed = Feed({"when": RULE, "do": "notify", "parameters": ["p0"]})
    assert feed.step([1.0, 1e40, 1.0]) == []
    (finding,) = feed.step([1e40, 1e40, 1.0])
    assert finding.parameters == ("p0",)


def test_an_sgd_update_beyond_the_weights_is_an_alarm_before_anything_is_armed():
    feed = diagnose(RULE)
    assert feed.step([1.0, 30.0, 1.0], lr=0.1, sgd_reach=1.0) == []
    (finding,) = feed.step([1.0, 900.0, 1.0], lr=0.1, sgd_reach=1.0)
    assert (finding.severity, finding.parameters) == ("critical", ("p1",))
    assert finding.value == pytest.approx(90.0, rel=1e-3)
    assert finding.threshold == 10.0
    assert finding.baseline is None


def test_an_update_within_the_weights_is_none():
    assert diagnose(RULE).step(1.0, lr=0.1, sgd_reach=1.0) == []
    assert diagnose(RULE).step(1e6, lr=0.1, sgd_reach=math.inf) == []
    assert diagnose(RULE).step(1e6, lr=0.0, sgd_reach=1.0) == []


def test_an_update_beyond_the_weights_does_not_silence_a_rule_on_some_parameters():
    feed = Feed({"when": RULE, "do": "notify", "parameters": ["p0"]})
    feed.repeat(30, 1.0)
    (finding,) = feed.step([1e6, 1.0, 1.0], lr=1.0, sgd_reach=1.0)
    assert finding.parameters == ("p0",)


def test_a_parameter_that_appears_with_an_extreme_gradient_is_the_one_that_is_named():
    feed = diagnose(RULE, num_parameters=2)
    feed.repeat(30, [1.0, None])
    (finding,) = feed.step([None, 1e4])
    assert finding.parameters == ("p1",)


def test_a_bad_step_is_left_to_nonfinite():
    assert warmed_up().step([math.nan, 1e6, 1e6]) == []


def test_without_any_gradient_there_is_no_alarm():
    feed = warmed_up()
    assert feed.repeat(3, [None, None, None]) == []
    assert feed.repeat(3, 0.0) == []
    assert feed.step(1e4)


def test_the_message_says_how_much_and_where():
    (finding,) = warmed_up().step(1e3)
    assert finding.message.startswith("The gradient norm is 1,730, ")
    assert "times its usual" in finding.message
    assert finding.advice


@pytest.mark.parametrize("calm", [6, 19, 20, 40])
def test_norms_that_stand_out_are_of_the_level_from_the_start_on(calm):
    """A second task may be a hundred times as large as the first, and come late: that is no start that runs away."""
    feeds = {about: diagnose({"exploding_gradient": {"about": about}}) for about in ("any", "level", "start")}
    for feed in feeds.values():
        for norms in noisy(calm):
            assert feed.step(norms) == []
    assert {about: bool(feed.step(1e5)) for about, feed in feeds.items()} == {
        "any": True,
        "level": True,
        "start": False,
    }


@pytest.mark.parametrize(("about", "is_told"), [("start", (True, False)), ("level", (False, True))])
def test_an_update_larger_than_the_weights_is_of_the_start_or_of_the_level(about, is_told):
    feed = diagnose({"exploding_gradient": {"about": about}})
    feed.step(1.0, lr=1.0, sgd_reach=1.0)
    first = bool(feed.step(1e3, lr=1.0, sgd_reach=1.0))
    feed.repeat(30, 1.0)
    assert (first, bool(feed.step(1e3, lr=1.0, sgd_reach=1.0))) == is_told


def test_once_the_level_is_known_what_looks_at_the_start_lets_steps_be_put_off():
    feed = diagnose({"exploding_gradient": {"about": "start"}})
    feed.repeat(19, 1.0)
    assert feed.judgement.calm(feed.stats) is None
    feed.repeat(2, 1.0)
    assert feed.judgement.calm(feed.stats) == Calm()
    assert not any(feed.judgement.triggers(feed.stats).values())
