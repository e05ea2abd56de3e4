"""No limit locks: after a lasting rise of the level a limit lets through what it let through before, within its steps.

For comparison the same norms are put through the published recurrence, which never does.
"""

import math

import numpy as np
import pytest
from following import Following, noisy

from gradguard.limits.zscore import zscore_limits


CALM = 300  # steps at the first level, warm-ups included
LOOK = 200  # steps over which the share that is let through is measured
# Steps within which each is back, for a rise by the factor given.
LIMITS = {
    "median_times": ({"median_times": 2}, lambda factor: 26),
    "percentile": ({"percentile": 90, "window": 100}, lambda factor: 100),
    "quantile": ({"quantile": 0.9, "rate": 0.05}, lambda factor: math.log(factor) / (0.05 * 0.9) + 40),
    "zscore": ({"zscore": 2.5}, lambda factor: 36),
    "zscore mean": ({"zscore": 2.5, "mode": "mean"}, lambda factor: 36),
    "zscore max": ({"zscore": 2.5, "mode": "max"}, lambda factor: 36),
    "adagc": ({"adagc": 1.05}, lambda factor: 36),
}


def share_kept(factors):
    """Return what is left of the gradients, on average."""
    return float(np.mean(factors))


# AdaGC follows a smaller rise by 0.1 % a step, as published.
RISES = [(kind, factor) for kind in LIMITS for factor in (1.25, 1.5, 2, 3, 5, 10) if kind != "adagc" or factor >= 2]


@pytest.mark.parametrize(("kind", "factor"), RISES)
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2, 0.3])
def test_a_new_level_is_let_through_within_the_stated_steps(kind, factor, noise):
    options, steps = LIMITS[kind]
    following = Following(options, scope="per_parameter")
    before = share_kept(following.run(noisy(1.0, noise, CALM))[-LOOK:])
    following.run(noisy(factor, noise, math.ceil(steps(factor)), seed=1))
    after = share_kept(following.run(noisy(factor, noise, LOOK, seed=2)))
    assert after > before - 0.08


def published_zclip(norms, mode="reciprocal"):
    """Return what is left of each norm when the average is fed with what it was cut to, and nothing else."""
    first, rest = np.array(norms[:25]), norms[25:]
    mean, variance, kept = first.mean(), first.var(), []
    for norm in rest:
        limit = float(zscore_limits(np.array(norm), mean, np.sqrt(variance) + 1e-6, 2.5, mode))
        value = min(norm, limit)
        kept.append(value / norm)
        mean = 0.97 * mean + 0.03 * value
        variance = 0.97 * variance + 0.03 * (value - mean) ** 2
    return kept


@pytest.mark.parametrize("mode", ["reciprocal", "mean"])
def test_the_published_recurrence_does_lock_on_these_norms(mode):
    kept = published_zclip([*noisy(1.0, 0.1, CALM), *noisy(2.0, 0.1, 3000, seed=1)], mode)
    assert share_kept(kept[-1000:]) < 0.6


@pytest.mark.parametrize("kind", LIMITS)
def test_a_level_that_falls_is_followed_down(kind):
    """Else a limit that a storm has lifted would let through whatever comes after it."""
    options, _ = LIMITS[kind]
    following = Following(options, scope="per_parameter")
    following.run(noisy(10.0, 0.1, CALM))
    following.run(noisy(1.0, 0.1, 600, seed=1))
    assert float(following.step(10.0)[0]) < 0.4


@pytest.mark.parametrize("kind", [kind for kind in LIMITS if kind != "adagc"])
def test_a_rise_bit_by_bit_is_followed(kind):
    options, _ = LIMITS[kind]
    following = Following(options)
    before = share_kept(following.run(noisy(1.0, 0.1, CALM))[-LOOK:])
    levels = np.geomspace(1.0, 5.0, 160)  # 1 % a step
    following.run([norm * level for norm, level in zip(noisy(1.0, 0.1, 160, seed=1), levels, strict=True)])
    following.run(noisy(5.0, 0.1, 60, seed=2))
    assert share_kept(following.run(noisy(5.0, 0.1, LOOK, seed=3))) > before - 0.05


def test_the_statistics_after_a_release_are_those_of_the_new_level_alone():
    """Norms from before the rise are still among the last ones; they would widen what counts as usual."""
    following = Following({"zscore": 2.5})
    following.run(noisy(1.0, 0.05, CALM))
    following.run(noisy(10.0, 0.05, 30, seed=1))
    (tracker,) = following.feed.judgement.trackers.values()
    assert tracker.mean[0] == pytest.approx(10.0, rel=0.05)
    assert math.sqrt(tracker.variance[0]) < 1.0
