"""stale_gradients: several in a row, told once until it was better."""

import pytest
from feed import diagnose


def run(stale, steps=3):
    feed = diagnose({"stale_gradients": {"steps": steps}})
    return [step for step, is_stale in enumerate(stale) if feed.step(is_stale=is_stale)]


def test_fresh_gradients_are_no_finding():
    assert run([False] * 20) == []


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_it_is_reported_once_after_so_many_stale_steps(steps):
    assert run([True] * 20, steps) == [steps - 1]


def test_stale_steps_that_are_not_in_a_row_are_no_finding():
    assert run([True, True, False] * 10) == []


def test_after_fresh_gradients_it_is_reported_again():
    assert run([True] * 5 + [False] + [True] * 5) == [2, 8]


def test_the_finding_says_what_to_do():
    feed = diagnose({"stale_gradients": {"steps": 2}})
    feed.step(is_stale=True)
    (finding,) = feed.step(is_stale=True)
    assert (finding.value, finding.threshold, finding.severity) == (2, 2, "warn")
    assert "zero_grad" in finding.advice
