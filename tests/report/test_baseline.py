import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.evidence.running import NormWindow
from gradguard.policy.load import load_policy
from gradguard.report.baseline import LEAST, Alarm, alarm_of, level_before


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(1e-3, 1e3) | st.sampled_from([float("nan"), float("inf"), 0.0]), min_size=1, max_size=40))
def test_the_level_is_that_of_the_guards_own_window(norms):
    """Its median is the lower of two middle ones, ours lies between them."""
    window = NormWindow(1, 11)
    levels = level_before(np.array(norms), np.arange(len(norms)), 11)
    for step, norm in enumerate(norms):
        if window.counts[0] >= LEAST:
            values = np.sort(window.ring[np.isfinite(window.ring)])
            upper = values[len(values) // 2]
            assert float(window.median[0]) * (1 - 1e-5) <= levels.median[step] <= upper * (1 + 1e-5)
        else:
            assert np.isnan(levels.median[step])
        window.push(np.array([norm], dtype=np.float32))


def test_the_band_holds_nearly_all_of_a_healthy_run():
    norms = np.exp(np.random.default_rng(0).normal(0, 0.5, 2000))
    levels = level_before(norms, np.arange(2000), 50)
    inside = (norms > levels.low) & (norms < levels.high)
    assert inside[100:].mean() > 0.97


def test_one_outlier_does_not_move_the_band():
    norms = np.ones(100)
    norms[50] = 1e6
    assert level_before(norms, np.array([60]), 50).high[0] == pytest.approx(np.exp(0.3))


def test_the_default_policy_tells_its_thresholds():
    assert alarm_of(load_policy("default").model_dump(mode="json")) == Alarm(50, (20.0, 100.0), None)


def test_a_clip_at_every_step_is_a_line_to_draw():
    rule = {"when": "always", "do": [{"clip_norm": {"max_norm": 1.5}}, {"rescale": {"factor": 2}}]}
    assert alarm_of({"rules": [rule]}).clip == 1.5


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"rules": 3},
        {"rules": [None, 7, {"when": [1]}, {"when": "always", "do": "x"}, {"do": [{"a": None}]}]},
        {"rules": [{"when": {"exploding_gradient": {"ratio": 2.0, "extreme_ratio": 3.0, "window": 10**30}}}]},
    ],
)
def test_a_policy_that_is_none_does_no_harm(policy):
    assert alarm_of(policy).window <= 100_000
