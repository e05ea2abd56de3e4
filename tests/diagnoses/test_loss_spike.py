"""loss_spike: one-sided, for losses of any sign, never masked, never locked."""

import math

import numpy as np
import pytest
from feed import diagnose
from hypothesis import given, settings
from hypothesis import strategies as st


LAW = settings(max_examples=30, deadline=None, derandomize=True)
RULE = {"loss_spike": {"window": 20, "warmup": 10, "zscore": 10}}


def noisy(count, level=1.0, noise=0.05, seed=0):
    return (level * np.exp(noise * np.random.default_rng(seed).standard_normal(count))).tolist()


def fed(losses, rule=RULE, **fields):
    feed = diagnose(rule)
    for loss in losses:
        feed.step(loss=loss, **fields)
    return feed


@LAW
@given(st.floats(1e-6, 1e6), st.integers(0, 100), st.floats(0, 0.3), st.floats(0, 0.02))
def test_a_noisy_decay_is_no_spike_whatever_its_scale(level, seed, noise, decay):
    feed = diagnose(RULE)
    for step, loss in enumerate(noisy(150, level, noise, seed)):
        assert feed.step(loss=loss * math.exp(-decay * step)) == []


def test_a_loss_far_above_its_past_is_a_spike():
    (finding,) = fed(noisy(30)).step(loss=50.0)
    assert (finding.severity, finding.value) == ("critical", 50.0)
    assert finding.baseline == pytest.approx(1.0, rel=0.1)
    assert finding.threshold > finding.baseline
    assert finding.evidence["z"] > 6
    assert (finding.parameters, finding.indices) == ((), ())


def test_a_spike_below_the_initial_loss_is_less_grave():
    losses = [10.0] * 10 + noisy(30)
    (finding,) = fed(losses).step(loss=8.0)
    assert finding.severity == "warn"


def test_a_loss_that_falls_is_never_a_spike():
    assert fed(noisy(30)).step(loss=1e-6) == []


def test_one_spike_does_not_hide_the_next():
    feed = fed(noisy(30))
    assert feed.step(loss=50.0)
    (finding,) = feed.step(loss=40.0)
    assert finding.threshold < finding.value


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_a_loss_that_is_none_changes_nothing(bad):
    feed = fed(noisy(30))
    assert feed.step(loss=bad) == []
    assert feed.step(loss=50.0)


def test_after_a_lasting_change_of_level_the_alarm_is_released():
    feed = fed(noisy(30))
    alarms = [bool(feed.step(loss=loss)) for loss in noisy(60, level=30.0)]
    assert alarms[0]
    assert not any(alarms[20:])
    assert feed.step(loss=3000.0)


def test_losses_of_any_sign_are_judged_by_their_spread():
    losses = (-5.0 + 0.1 * np.random.default_rng(0).standard_normal(40)).tolist()
    assert fed(losses).step(loss=-4.6) == []
    assert fed(losses).step(loss=20.0)


def test_losses_that_are_all_zero_are_no_reason_to_divide_by_zero():
    feed = fed([0.0] * 30)
    assert feed.step(loss=1e-3) == []


def test_noise_around_a_fitted_model_is_no_spike():
    """Once the loss is a millionth of the initial one, it may be a thousandfold on a single batch."""
    assert fed([1.0] * 5 + noisy(40, level=1e-6)).step(loss=1e-3) == []


def test_a_higher_loss_after_a_rise_of_the_learning_rate_is_explained():
    feed = fed([3.0] * 5 + noisy(30), lr=0.01)
    assert feed.step(loss=2.5, lr=0.1) == []
    feed = fed([3.0] * 5 + noisy(30), lr=0.01)
    assert feed.step(loss=30.0, lr=0.1)


def test_an_absurd_loss_is_believed_early():
    assert fed([1.0] * 5).step(loss=150.0)
    assert fed([1.0] * 5).step(loss=50.0) == []
    assert fed([1.0] * 2).step(loss=1e9) == []


@pytest.mark.parametrize("window", [2, 3, 4, 5, 10, 20])
def test_every_window_that_the_policy_takes_is_armed(window):
    """The default warm-up is longer than a short window; it must not disarm the rule for good."""
    assert fed(noisy(60), {"loss_spike": {"window": window}}).step(loss=50.0)


@pytest.mark.parametrize("loss", [3e38, 1e300])
def test_losses_beyond_float32_are_judged_like_any_other(loss):
    assert fed(noisy(30)).step(loss=loss)
    feed = fed([-loss] * 15 + [loss] * 15)
    assert feed.step(loss=0.0) == []
