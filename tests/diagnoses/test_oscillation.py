"""oscillation: noise from step to step that keeps a run from learning, and updates that point backwards."""

import math

import numpy as np
import pytest
from feed import diagnose
from hypothesis import given, settings
from hypothesis import strategies as st
from probed import updates


def run(losses):
    feed = diagnose("oscillation")
    return [finding for loss in losses for finding in feed.step(1.0, float(loss))]


def heavy(count, size, level=1.0, seed=0):
    return level * np.exp(size * np.random.default_rng(seed).standard_normal(count))


def test_noise_that_keeps_the_loss_up_is_worth_knowing():
    (finding,) = run([*[1.0] * 5, *heavy(200, 0.5)])
    assert (finding.severity, finding.evidence["kind"]) == ("info", "loss")
    assert finding.value > finding.threshold == pytest.approx(0.15)


def test_outbursts_above_the_start_are_a_warning():
    found = run([*[1.0] * 5, *heavy(200, 1.2, level=1.2)])
    assert [finding.severity for finding in found] == ["warn"]


def test_noise_must_last_and_is_not_repeated_for_a_while():
    assert run([*[1.0] * 5, *heavy(110, 0.5)]) == []
    assert len(run([*[1.0] * 5, *heavy(500, 0.5)])) == 1
    assert len(run([*[1.0] * 5, *heavy(1200, 0.5)])) >= 2


@pytest.mark.parametrize(
    "losses",
    [
        heavy(300, 0.05),
        np.exp(-np.arange(300) / 30) * heavy(300, 0.5),
        np.exp(-np.arange(300) / 100),
        [*[1.0] * 5, *heavy(300, 0.5, level=0.3)],
        np.random.default_rng(0).standard_normal(300),
        -heavy(300, 0.5),
        [math.nan] * 300,
    ],
    ids=["calm", "falling", "smooth", "learned", "around 0", "negative", "none"],
)
def test_other_losses_are_quiet(losses):
    assert run(losses) == []


def cosines(values):
    feed = diagnose("oscillation")
    return [finding for value in values for finding in feed.step(1.0, 1.0, updates=updates(cosine=value))]


def test_updates_that_point_backwards_at_five_probes_are_worth_knowing():
    (finding,) = cosines([-0.6] * 8)
    assert (finding.severity, finding.value, finding.step) == ("info", -0.6, 4)


@pytest.mark.parametrize("values", [[-0.1] * 9, [0.9, 0.9, -0.9] * 4, [math.nan] * 9, [-0.9] * 4])
def test_other_updates_are_quiet(values):
    assert cosines(values) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([2.0**-40, 2.0**30]), st.sampled_from([0.1, 0.5, 1.2]))
def test_the_scale_of_the_loss_does_not_matter(seed, scale, size):
    losses = heavy(160, size, seed=seed)
    assert [f.severity for f in run(scale * losses)] == [f.severity for f in run(losses)]
