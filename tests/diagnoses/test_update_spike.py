"""update_spike: one update that stands out, not a schedule and not a new level."""

import math

import numpy as np
import pytest
from feed import diagnose
from probed import updates


def run(norms, lrs=None, **options):
    """Return the findings of updates at every step."""
    feed = diagnose({"update_spike": options} if options else "update_spike")
    found, rates = [], lrs or [0.1] * len(norms)
    for step, (norm, rate) in enumerate(zip(norms, rates, strict=True)):
        found += feed.step(1.0, 1.0, updates=updates(norm, step=step, lr=rate, lr_max=max(rates[: step + 1])))
    return found


CALM = [float(norm) for norm in 0.01 * np.exp(0.1 * np.random.default_rng(0).standard_normal(40))]


def test_a_spike_is_reported_with_its_size():
    (finding,) = run([*CALM, 0.2, *CALM])
    assert (finding.step, finding.severity) == (40, "warn")
    assert finding.value == pytest.approx(0.2 * math.sqrt(3), rel=1e-5)
    assert finding.value > finding.threshold > finding.baseline


def test_a_hundredfold_is_critical():
    assert [finding.severity for finding in run([*CALM, 2.0])] == ["critical"]


def test_calm_updates_are_quiet():
    assert run(CALM * 3) == []


def test_it_needs_some_updates_first():
    assert run([*CALM[:9], 5.0]) == []
    assert len(run([*CALM[:10], 5.0])) == 1


def test_a_lasting_change_of_level_ends_the_alarm_by_itself():
    steps = [finding.step for finding in run([*CALM, *[50 * norm for norm in CALM * 3]])]
    assert steps
    assert max(steps) < 40 + 25


def test_a_schedule_that_returns_to_its_rate_is_no_spike_but_an_unknown_rate_is():
    low = [norm / 1000 for norm in CALM]
    assert run([*CALM, *low, *CALM], [0.1] * 40 + [1e-4] * 40 + [0.1] * 40) == []
    assert len(run([*CALM, 100 * CALM[0], *CALM], [0.1] * 40 + [10.0] + [0.1] * 40)) == 1


@pytest.mark.parametrize("bad", [math.nan, 0.0])
def test_what_was_not_looked_at_is_no_update(bad):
    assert run([*CALM, bad, *CALM]) == []
    assert len(run([*CALM, *[bad] * 60, 0.5])) == 1


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_the_scale_does_not_matter(scale):
    (finding,) = run([scale * norm for norm in [*CALM, 0.2]])
    assert finding.severity == "warn"
