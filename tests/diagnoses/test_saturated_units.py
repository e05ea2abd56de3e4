"""saturated_units: hidden sigmoids and tanhs in their flat parts, not the model's answers."""

import math

import pytest
from feed import diagnose
from probed import activations, output


def run(probes, loss=1.0, start=None):
    feed = diagnose("saturated_units")
    found = []
    for number, seen in enumerate(probes):
        for step in range(50):
            value = start if start is not None and number == 0 and step < 6 else loss
            found += feed.step(1.0, value, activations=seen if step == 49 else None)
    return found


SICK = activations(kinds=["tanh", "tanh", "relu"], saturated=[0.9, 0.95, math.nan])


def test_it_is_reported_at_the_third_probe_with_the_worst_layer_first():
    assert run([SICK] * 2) == []
    (finding,) = run([SICK] * 3)
    assert (finding.severity, finding.parameters) == ("warn", ("b", "a"))
    assert finding.value == pytest.approx(0.95)
    assert "Xavier" in finding.advice


def test_a_healthy_probe_starts_the_count_afresh():
    well = activations(kinds=["tanh", "tanh", "relu"], saturated=[0.4, 0.4, math.nan])
    assert run([SICK, SICK, well, SICK, SICK]) == []


def test_a_run_that_learns_is_only_worth_knowing():
    (finding,) = run([SICK] * 4, loss=0.2, start=1.0)
    assert finding.severity == "info"


def test_it_is_not_repeated_for_a_while():
    assert len(run([SICK] * 8)) == 1


def test_sure_answers_are_no_fault():
    sure = activations(kinds=["relu", "sigmoid"], units=[64, 10], saturated=[math.nan, 1.0], out=output(num_units=10))
    assert run([sure] * 4) == []
    hidden = activations(kinds=["relu", "sigmoid"], units=[64, 32], saturated=[math.nan, 1.0], out=output(num_units=10))
    assert len(run([hidden] * 4)) == 1


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_the_scale_of_the_loss_does_not_matter(scale):
    assert [finding.severity for finding in run([SICK] * 4, loss=scale)] == ["warn"]
    assert [finding.severity for finding in run([SICK] * 4, loss=0.2 * scale, start=scale)] == ["info"]


@pytest.mark.parametrize(("mean", "is_told"), [(0.997, False), (0.003, False), (0.4, True)])
def test_a_gate_that_stands_open_or_shut_is_no_fault(mean, is_told):
    gate = activations(kinds=["relu", "sigmoid"], saturated=[math.nan, 0.98], mean=[0.2, mean])
    assert bool(run([gate] * 4)) is is_told
