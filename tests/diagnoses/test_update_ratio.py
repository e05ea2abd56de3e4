"""update_ratio: updates that do not fit the weights, whatever the schedule does with the learning rate."""

import math

import pytest
from feed import diagnose
from probed import activations, updates


def run(probes, loss=1.0, start=None, shape=(2, 2)):
    feed = diagnose("update_ratio", shape=shape)
    found = []
    for number, moved in enumerate(probes):
        for step in range(50):
            value = start if start is not None and number == 0 and step < 6 else loss
            found += feed.step(1.0, value, updates=moved if step == 49 else None)
    return found


def test_tiny_updates_of_a_run_that_does_not_move_are_reported_at_the_third_probe():
    assert run([updates(1e-7)] * 2) == []
    (finding,) = run([updates(1e-7)] * 3)
    assert (finding.severity, finding.evidence["kind"]) == ("warn", "small")
    assert finding.value == pytest.approx(1e-7, rel=1e-3)
    assert finding.advice.startswith("Raise the learning rate")
    assert set(finding.indices) == {0, 1, 2}


def test_huge_updates_are_reported_at_the_second_probe_after_the_first_steps():
    assert run([updates(0.5, step=5)] * 4) == []
    (finding,) = run([updates(0.5, step=60)] * 2)
    assert (finding.severity, finding.evidence["kind"]) == ("warn", "large")
    assert finding.advice.startswith("Lower the learning rate")


def test_a_run_that_learns_says_nothing_of_tiny_updates_and_little_of_huge_ones():
    assert run([updates(1e-7)] * 4, loss=0.8, start=1.0) == []
    (finding,) = run([updates(0.5)] * 4, loss=0.2, start=1.0)
    assert finding.severity == "info"


def test_the_tail_of_a_cosine_schedule_is_quiet():
    """The learning rate falls to a thousandth, and the updates with it."""
    tail = [updates(1e-3 * 0.1**k, lr=0.1 * 0.1**k, lr_max=0.1) for k in range(5)]
    assert run(tail) == []


def test_a_warm_up_is_quiet():
    rising = [updates(1e-9 * 2**k, lr=1e-7 * 2**k) for k in range(8)]
    assert run(rising) == []


def test_a_rate_of_zero_is_not_judged():
    assert run([updates(0.0, lr=0.0)] * 5) == []


def test_a_weight_that_starts_at_zero_has_no_huge_update():
    """Adapters and heads that start at zero: any step is infinitely large beside them."""
    assert run([updates(0.01, weights=[0.0, 1e-9, 1e-9])] * 4, shape=(64, 8)) == []


def test_what_was_not_looked_at_is_left_out():
    assert run([updates([math.nan, math.nan, math.nan])] * 4) == []
    (finding,) = run([updates([math.nan, 1e-7, 1e-7])] * 4)
    assert set(finding.indices) == {1, 2}


def test_a_frozen_backbone_is_left_out():
    assert run([updates([0.0, 0.0, 1e-3], without_gradient=(0, 1))] * 4) == []
    (finding,) = run([updates([0.0, 0.0, 1e-7], without_gradient=(0, 1))] * 4)
    assert finding.indices == (2,)


def test_without_matrices_there_is_nothing_to_judge():
    assert run([updates(5.0)] * 4, shape=(3,)) == []


def test_a_loss_that_tells_nothing_makes_it_only_worth_knowing():
    assert [finding.severity for finding in run([updates(1e-7)] * 4, loss=-1.0)] == ["info"]


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_scale_of_loss_and_weights_does_not_matter(scale):
    assert len(run([updates(1e-7)] * 3, loss=scale)) == 1
    assert len(run([updates(1e-7 * 1e3, weights=1e3)] * 3, loss=scale)) == 1


def test_large_updates_and_dead_units_together_are_reported_even_in_a_run_that_learns():
    def found(ratio, dead, kind="relu"):
        feed = diagnose("update_ratio")
        seen = activations(kinds=[kind], dead=dead)
        feed.repeat(6, 1.0, 1.0)
        return [
            finding
            for step in range(300)
            for finding in feed.step(
                1.0,
                0.2,
                activations=seen if step % 50 == 10 else None,
                updates=updates(ratio, step=step) if step % 50 == 20 else None,
            )
        ]

    (finding,) = found(0.04, 0.8)
    assert finding.severity == "warn"
    assert "80% of the units" in finding.message
    assert found(0.04, 0.3) == found(0.004, 0.8) == found(0.04, 0.8, "tanh") == []


@pytest.mark.parametrize(("about", "small", "large"), [("any", 1, 1), ("small", 1, 0), ("large", 0, 1)])
def test_a_rule_may_be_about_small_or_large_updates_alone(about, small, large):
    def count(probes):
        feed = diagnose({"update_ratio": {"about": about}})
        steps = [moved if step == 49 else None for moved in probes for step in range(50)]
        return sum(len(feed.step(1.0, 1.0, updates=moved)) for moved in steps)

    assert count([updates(1e-7)] * 4) == small
    assert count([updates(0.5, step=60)] * 4) == large
