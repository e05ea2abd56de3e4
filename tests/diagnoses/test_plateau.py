"""plateau: stuck at the start, at chance, on the way, or done; slow, noisy and unusual losses are left alone."""

import math

import numpy as np
import pytest
from feed import diagnose
from hypothesis import given, settings
from hypothesis import strategies as st
from probed import activations, output


def run(losses, rate=0.1, num_outputs=0, **options):
    feed = diagnose({"plateau": options} if options else "plateau")
    seen = activations(out=output(num_units=num_outputs)) if num_outputs else None
    found = []
    for step, loss in enumerate(losses):
        fields = {"lr": rate(step) if callable(rate) else rate, "activations": seen if step == 3 else None}
        found += feed.step(1.0, float(loss), **fields)
    return found


def told(losses, **options):
    return [(finding.severity, finding.evidence["kind"]) for finding in run(losses, **options)]


def noise(count, size=0.02, seed=0):
    return size * np.random.default_rng(seed).standard_normal(count)


def flat(count, level=2.3, size=0.02):
    return level * (1 + noise(count, size))


def decay(count, floor, time):
    return floor + (1 - floor) * np.exp(-np.arange(count) / time) + noise(count)


def test_a_loss_that_never_leaves_its_start_is_a_warning():
    (finding,) = run(flat(250))
    assert (finding.severity, finding.evidence["kind"]) == ("warn", "stuck at the start")
    assert 150 <= finding.step <= 200
    assert finding.baseline == pytest.approx(2.3, rel=0.05)


def test_the_noise_of_the_start_is_allowed_for():
    assert told(flat(250, size=0.1)) == [("warn", "stuck at the start")]


def test_guessing_among_the_classes_is_a_warning_wherever_the_run_began():
    losses = math.log(10) * (1 + 0.1 * np.exp(-np.arange(200) / 10) + noise(200, 0.003))
    assert ("warn", "stuck at chance") in told(losses, num_outputs=10)
    assert "warn" not in dict(told(losses, num_outputs=7))


def test_a_run_that_falls_back_to_guessing_is_stuck():
    losses = np.concatenate([decay(150, 0.05, 20) * 2.3, flat(200, math.log(10), 0.003)])
    assert ("warn", "stuck at chance") in told(losses, num_outputs=10)


def test_a_crawl_is_stuck_after_250_losses():
    crawl = 2.3 * (1 - 1.2e-4 * np.arange(400)) * (1 + noise(400, 0.001))
    assert told(crawl)[0] == ("warn", "hardly moved")


def test_a_floor_on_the_way_is_only_worth_knowing():
    found = told(decay(600, 0.4, 20))
    assert set(found) == {("info", "plateau")}
    assert len(found) <= 3


def test_a_run_that_has_converged_is_not_reported():
    assert told(decay(600, 0.0, 15) + 0.02) == []


@pytest.mark.parametrize(
    "losses",
    [
        decay(300, 0.1, 60),
        1.39 * (1 - 2.5e-4 * np.arange(300)) + noise(300, 0.01),
        2.3 - 2.0 / (1 + np.exp(-(np.arange(300) - 100) / 15)) + noise(300),
    ],
    ids=["falling", "slow", "late"],
)
def test_a_loss_that_falls_is_quiet(losses):
    assert told(losses) == []


def test_a_long_slow_phase_is_not_stuck():
    """A power law: the windows grow with the run, so that the fall is seen."""
    losses = 10.0 * np.arange(1, 3001) ** -0.08 * (1 + noise(3000, 0.01))
    assert [severity for severity, _ in told(losses) if severity != "info"] == []


def test_a_learning_rate_that_still_rises_is_waited_for():
    assert told(flat(300), rate=lambda step: 1e-6 * step) == []


@pytest.mark.parametrize("losses", [-flat(300), noise(300), flat(300) * np.nan], ids=["negative", "around 0", "none"])
def test_losses_without_a_ratio_are_not_judged(losses):
    assert told(losses) == []


def test_a_game_that_moves_and_comes_back_is_not_stuck():
    """Two networks against each other: the loss ends where it began, but has been elsewhere."""
    losses = np.concatenate([flat(20, 1.39), flat(60, 0.8), flat(300, 1.39)])
    assert "warn" not in dict(told(losses, num_outputs=1))


def test_stuck_is_told_again_only_in_a_run_twice_as_long():
    steps = [finding.step for finding in run(flat(900))]
    assert len(steps) == 3
    assert steps[2] + 1 >= 2 * (steps[1] + 1) >= 4 * (steps[0] + 1)


def test_a_long_run_keeps_a_short_curve():
    feed = diagnose("plateau")
    for loss in flat(8000):
        feed.step(1.0, float(loss))
    state = feed.judgement.entries[0].state
    assert len(state.points) < 256
    assert state.size >= 40


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([2.0**-40, 2.0**30]), st.sampled_from([0.0, 0.01, 0.1]))
def test_the_scale_of_the_loss_does_not_matter(seed, scale, slope):
    random = np.random.default_rng(seed)
    losses = np.exp(-slope * np.arange(160)) * np.exp(0.02 * random.standard_normal(160))
    assert told(scale * losses) == told(losses)


@pytest.mark.parametrize("spike", [4.0, math.nan, math.inf])
def test_neither_a_spike_nor_a_nan_hides_progress(spike):
    """The recent trend is judged, not the distance from the best so far, which a jump upwards makes useless."""
    losses = [2.0 * 0.99**step for step in range(300)]
    jumped = [*losses[:60], *(loss + 1.5 if math.isfinite(spike) else loss for loss in losses[60:])]
    jumped[60] = spike
    assert told(losses) == []
    assert not [severity for severity, _ in told(jumped) if severity != "info"]


@pytest.mark.parametrize("bad", [math.nan, 50.0])
def test_neither_a_spike_nor_a_nan_hides_a_loss_that_is_stuck(bad):
    losses = flat(300)
    losses[[40, 120]] = bad
    assert ("warn", "stuck at the start") in told(losses)
