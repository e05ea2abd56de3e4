"""collapsed_output: an output that does not depend on the input any more, in a run that does not learn."""

import math

import pytest
from feed import diagnose
from probed import activations, output


def run(outputs, loss=1.0, start=None):
    feed = diagnose("collapsed_output")
    found = []
    for number, out in enumerate(outputs):
        for step in range(50):
            value = start if start is not None and number == 0 and step < 6 else loss
            found += feed.step(1.0, value, activations=activations(out=out) if step == 49 else None)
    return found


WELL, GONE = output(spread=2.0, level=5.0), output(spread=0.01, level=0.5)


def test_an_output_that_lost_its_spread_is_reported_at_the_second_probe():
    assert run([WELL, GONE]) == []
    (finding,) = run([WELL, GONE, GONE])
    assert finding.severity == "warn"
    assert (finding.value, finding.baseline, finding.threshold) == (0.01, 2.0, pytest.approx(0.02))


def test_a_spread_of_exactly_zero_is_critical():
    dead = output(spread=0.0, level=1.0)
    assert [finding.severity for finding in run([WELL, dead, dead])] == ["critical"]


def test_an_output_that_never_differed_is_reported_at_the_third_probe():
    flat = output(spread=0.001, level=1.0)
    assert run([flat, flat]) == []
    (finding,) = run([flat] * 3)
    assert (finding.severity, finding.baseline) == ("warn", 1.0)


def test_a_head_that_starts_at_zero_is_no_collapse():
    assert run([output(spread=0.0, level=0.0), WELL, WELL]) == []


def test_one_wide_first_output_is_made_up_for_by_learning():
    """Badly scaled first weights: the loss fell with the spread."""
    assert run([output(spread=1e4, level=1e4), WELL, WELL], loss=1.0, start=1e4) == []


def test_samples_that_hardly_differ_are_no_fault_in_a_run_that_learns():
    """Years as targets: 2000 plus or minus 10."""
    assert run([output(spread=10.0, level=2000.0)] * 4, loss=100.0, start=4e6) == []


def test_a_loss_that_tells_nothing_makes_it_only_worth_knowing():
    assert [finding.severity for finding in run([WELL, GONE, GONE], loss=-0.1)] == ["info"]


def test_it_is_not_repeated_for_a_while():
    assert len(run([WELL, *[GONE] * 8])) == 1


@pytest.mark.parametrize("out", [None, output(num_samples=4, spread=0.0), output(spread=math.nan)])
def test_without_enough_to_look_at_nothing_is_said(out):
    assert run([WELL, *[out] * 4]) == []


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_does_not_matter(scale):
    well, gone = output(spread=2 * scale, level=5 * scale), output(spread=0.01 * scale, level=0.5 * scale)
    assert len(run([well, gone, gone], loss=scale)) == 1
