"""divergence: above the start, with growing gradients; a healthy game is none."""

import itertools
import math

import pytest
from feed import diagnose
from hypothesis import given, settings
from hypothesis import strategies as st


LAW = settings(max_examples=30, deadline=None, derandomize=True)


def run(losses, norms=None, **options):
    feed = diagnose({"divergence": options}, num_parameters=1)
    norms = norms or [1.0] * len(losses)
    return [feed.step([norm], loss) for loss, norm in zip(losses, norms, strict=True)]


def alarms(found):
    return [(step, finding.severity) for step, findings in enumerate(found) for finding in findings]


@LAW
@given(st.floats(1e-3, 1e3), st.floats(0, 0.2), st.integers(20, 60))
def test_a_loss_that_falls_is_no_divergence(level, decay, steps):
    assert alarms(run([level * math.exp(-decay * step) for step in range(steps)])) == []


def test_a_loss_that_stays_above_its_start_with_larger_gradients_is_critical():
    found = run([1.0] * 10 + [5.0] * 10, [1.0] * 10 + [50.0] * 10)
    assert alarms(found)[0][1] == "critical"
    finding = next(finding for findings in found for finding in findings)
    assert (finding.baseline, finding.value) == (1.0, 5.0)
    assert finding.threshold == 1.5
    assert finding.evidence["first_norm"] == 1.0
    assert finding.evidence["recent_norm"] == 50.0


def test_a_higher_loss_without_larger_gradients_is_only_worth_knowing():
    assert {severity for _, severity in alarms(run([1.0] * 10 + [5.0] * 20))} == {"info"}


def test_a_single_high_loss_is_none():
    losses = [1.0] * 30
    losses[15] = 1e6
    assert alarms(run(losses)) == []


def test_while_it_lasts_it_is_repeated_now_and_then():
    steps = [step for step, _ in alarms(run([1.0] * 10 + [5.0] * 1200))]
    assert len(steps) == 3
    assert {later - earlier for earlier, later in itertools.pairwise(steps)} == {500}


def test_a_run_that_keeps_running_away_is_told_every_ten_steps():
    losses = [1.0] * 10 + [1.5**step for step in range(1, 51)]
    norms = [1.0] * 10 + [100.0] * 50
    critical = [step for step, severity in alarms(run(losses, norms)) if severity == "critical"]
    assert len(critical) >= 4
    assert {later - earlier for earlier, later in itertools.pairwise(critical)} == {10}


def test_a_run_that_comes_back_is_left_alone():
    assert alarms(run([1.0] * 10 + [5.0] * 5 + [0.9] * 40)) == []


def test_a_start_that_runs_away_is_critical_at_once():
    found = run([1.0, 20.0, 4e3, 1e6], [1.0, 30.0, 1e3, 1e5])
    assert alarms(found)[0] == (2, "critical")
    assert next(f for fs in found for f in fs).evidence["kind"] == "bad start"


def test_gradients_that_grow_while_the_loss_falls_are_no_bad_start():
    assert alarms(run([3.0, 2.0, 1.0, 0.5], [1.0, 30.0, 1e3, 1e5])) == []


def test_a_bad_start_is_one_only_at_the_start():
    quiet = 25
    losses = [1.0] * quiet + [1.1, 1.2, 1.3]
    assert alarms(run(losses, [1.0] * quiet + [30.0, 1e3, 1e5])) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_what_is_no_loss_is_no_part_of_the_start(bad):
    found = run([bad, bad, 1.0, bad] + [1.0] * 10 + [5.0] * 12)
    assert next(f for fs in found for f in fs).baseline == 1.0


def test_steps_with_bad_gradients_are_no_part_of_the_start():
    found = run([9.0, 9.0, 9.0] + [1.0] * 10 + [5.0] * 12, [math.nan] * 3 + [1.0] * 22)
    assert next(f for fs in found for f in fs).baseline == 1.0


def test_negative_losses_rise_by_their_own_size():
    assert alarms(run([-10.0] * 10 + [-9.5] * 20)) == []
    found = run([-10.0] * 10 + [10.0] * 20)
    finding = next(f for fs in found for f in fs)
    assert finding.value > finding.threshold > finding.baseline


def test_losses_around_zero_must_leave_their_own_noise():
    noise = [0.5, -0.5, 0.3, -0.4, 0.1] * 2
    assert alarms(run(noise + [1.0] * 20)) == []
    assert alarms(run(noise + [9.0] * 20))


@pytest.mark.parametrize("ratio", [1.2, 3.0])
def test_the_ratio_is_that_of_the_policy(ratio):
    assert alarms(run([1.0] * 10 + [ratio - 0.1] * 20, ratio=ratio)) == []
    assert alarms(run([1.0] * 10 + [ratio + 0.1] * 20, ratio=ratio))
