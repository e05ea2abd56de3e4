"""vanishing_in_time: two probes below the limit, in a run that does not learn."""

import pytest
from feed import diagnose
from probed import activations


def run(ratios, loss=1.0, start=None):
    feed = diagnose("vanishing_in_time")
    found = []
    for number, ratio in enumerate(ratios):
        for step in range(50):
            value = start if start is not None and number == 0 and step < 6 else loss
            seen = activations(through_time={"good": 0.5, "cell": ratio}) if step == 49 else None
            found += feed.step(1.0, value, activations=seen)
    return found


def test_it_is_reported_at_the_second_probe_with_the_module():
    assert run([1e-5]) == []
    (finding,) = run([1e-5] * 2)
    assert (finding.severity, finding.parameters, finding.value) == ("warn", ("cell",), 1e-5)
    assert "LSTM" in finding.advice


def test_a_healthy_probe_starts_the_count_afresh():
    assert run([1e-5, 0.1, 1e-5, 0.1, 1e-5]) == []


def test_a_run_that_learns_is_only_worth_knowing():
    assert [finding.severity for finding in run([1e-5] * 4, loss=0.6, start=1.0)] == ["info"]


def test_it_is_not_repeated_for_a_while():
    assert len(run([1e-9] * 8)) == 1


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_loss_does_not_matter(scale):
    assert [finding.severity for finding in run([1e-5] * 3, loss=scale)] == ["warn"]
