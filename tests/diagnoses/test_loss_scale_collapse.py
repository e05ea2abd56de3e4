"""loss_scale_collapse: many skips in a row or a scale below its limit, told once until a step is applied."""

import math

import pytest
from feed import diagnose


def run(steps, **options):
    """Return the steps with a finding; each step is (skips in a row, scale)."""
    feed = diagnose({"loss_scale_collapse": options})
    return [i for i, (skips, scale) in enumerate(steps) if feed.step(scaler_skips=skips, loss_scale=scale)]


def test_a_skip_now_and_then_is_how_a_scaler_works():
    assert run([(skips % 3, 2.0**12) for skips in range(60)]) == []


def test_many_skips_in_a_row_are_told_once_until_a_step_is_applied():
    assert run([(skips, 2.0**12) for skips in [1, 2, 3, 4, 5, 6, 7, 0, 1, 4, 5, 6]]) == [4, 10]


def test_a_scale_below_the_limit_is_told_once_until_it_has_recovered():
    assert run([(0, scale) for scale in [2.0, 1.0, 0.5, 0.25, 2.0, 0.5]]) == [2, 5]


def test_the_limits_are_those_of_the_policy():
    assert run([(2, 8.0)], skips=2) == [0]
    assert run([(1, 2.0)], min_scale=4.0) == [0]


def test_without_a_scaler_the_scale_is_one_and_never_too_low():
    feed = diagnose({"loss_scale_collapse": {"min_scale": 1.0}})
    assert feed.repeat(5, 1.0, 1.0) == []


@pytest.mark.parametrize(("loss", "kind"), [(math.nan, "NaN"), (math.inf, "Inf"), (1.0, "Inf"), (None, "Inf")])
def test_a_nan_is_told_from_an_overflow(loss, kind):
    (finding,) = diagnose("loss_scale_collapse").step(math.inf, loss, scaler_skips=5, loss_scale=4.0, found_inf=True)
    assert finding.evidence["kind"] == kind
    assert ("no loss scale cures" in finding.message) == (kind == "NaN")
    assert (finding.severity, finding.value, finding.threshold) == ("critical", 5, 5)


def test_a_low_scale_is_told_in_its_own_unit():
    (finding,) = diagnose("loss_scale_collapse").step(1.0, loss_scale=0.25)
    assert (finding.statistic, finding.value, finding.threshold) == ("loss scale", 0.25, 1.0)
