"""vanishing_gradient: only for depth-wise decay that lasts while the loss does not fall."""

import math

import numpy as np
import pytest
from feed import Feed, diagnose


DYING = [1e-6, 1e-3, 1.0]
HEALTHY = [0.5, 0.8, 1.0]


def run(norms, steps=120, loss=1.0, weights=1.0, **options):
    feed = diagnose("vanishing_gradient", num_parameters=len(norms), **options)
    feed.stats.weight_norms[:] = weights
    return [finding for step in range(steps) for finding in feed.step(norms, loss(step) if callable(loss) else loss)]


def test_a_gradient_that_dies_on_its_way_back_is_reported_with_its_layers():
    (finding,) = run(DYING)
    assert finding.parameters[0] == "p0"
    assert finding.indices[0] == 0
    assert finding.value == pytest.approx(1e-6, rel=1e-3)
    assert finding.threshold == 1e-2
    assert finding.evidence["spread"] == pytest.approx(1e6, rel=1e-3)
    assert "ReLU" in finding.advice
    assert finding.severity == "warn"


def test_only_layers_far_below_the_best_are_named():
    (finding,) = run([1e-6, 0.5, 1e-3, 1.0])
    assert finding.parameters == ("p0", "p2")
    assert (finding.indices, finding.num_parameters) == ((0, 2), 2)


def test_it_must_last():
    assert run(DYING, steps=20) == []
    assert len(run(DYING, steps=21)) == 1


def test_it_is_not_repeated_for_a_while():
    assert len(run(DYING, steps=400)) == 1


@pytest.mark.parametrize("norms", [HEALTHY, [1.0, 1.0, 1e-9], [0.1, 1e-9, 1.0]], ids=["healthy", "last", "middle"])
def test_other_patterns_are_none(norms):
    assert run(norms) == []


def test_it_is_no_alarm_while_the_loss_falls():
    assert run(DYING, loss=lambda step: 1.0 if step < 8 else 0.3) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_none_are_no_part_of_the_start(bad):
    assert run(DYING, loss=lambda step: bad if step < 8 else 1.0)


def test_without_a_loss_it_is_reported_all_the_same():
    assert len(run(DYING, loss=None)) == 1


def test_weights_of_the_same_smallness_explain_a_small_gradient():
    assert run(DYING, weights=DYING) == []


def test_fewer_than_three_matrices_are_no_depth():
    assert run([1e-6, 1.0]) == []
    assert run([1e-6, 1e-3, 1e-3, 1.0], shape=(3,)) == []


def test_before_the_weights_were_sampled_there_is_nothing_to_compare_with():
    assert run(DYING, weights=np.nan) == []


@pytest.mark.parametrize(
    "weights", [[np.nan, 1.0, 1.0], [0.0, 1.0, 1.0], [np.inf, 1.0, 1.0]], ids=["nan", "zero", "inf"]
)
def test_a_layer_whose_weights_have_no_usable_norm_is_left_out(weights):
    assert run(DYING, weights=weights) == []
    (finding,) = run([1e-6, *DYING], weights=[weights[0], 1.0, 1.0, 1.0])
    assert "p0" not in finding.parameters


def test_a_parameter_without_a_gradient_is_left_out():
    assert run([None, 1e-3, 1.0]) == []
    (finding,) = run([None, 1e-6, 1e-3, 1.0])
    assert finding.parameters[0] == "p1"


def test_a_gradient_of_exactly_zero_is_the_smallest_of_all():
    (finding,) = run([0.0, 1e-3, 1.0])
    assert finding.parameters[0] == "p0"
    assert finding.value == 0.0


def test_a_dead_first_layer_in_a_run_that_explodes_is_an_alarm_like_any_other():
    assert len(run([0.0, 1.0, 1e9])) == 1


def test_without_any_gradient_there_is_no_alarm():
    assert run([None, None, None]) == []
    assert run([0.0, 0.0, 0.0]) == []
    assert run([math.nan] * 3) == []


def test_a_healthy_check_starts_the_count_afresh():
    feed = diagnose("vanishing_gradient")
    feed.stats.weight_norms[:] = 1.0
    found = [feed.step(HEALTHY if step % 40 < 25 else DYING, 1.0) for step in range(200)]
    assert not any(found)


def test_the_limits_are_those_of_the_policy():
    feed = Feed(
        {"when": {"vanishing_gradient": {"max_spread": 1.2, "min_first_to_last": 0.9}}, "do": "notify"},
        num_parameters=3,
    )
    feed.stats.weight_norms[:] = 1.0
    assert [finding for step in range(60) for finding in feed.step(HEALTHY, 1.0)]


def test_a_rule_on_some_parameters_looks_at_these():
    feed = Feed({"when": "vanishing_gradient", "do": "notify", "parameters": ["p1", "p2", "p3"]}, num_parameters=4)
    feed.stats.weight_norms[:] = 1.0
    assert not [finding for step in range(60) for finding in feed.step([1e-9, *HEALTHY], 1.0)]
    (finding,) = [finding for step in range(60) for finding in feed.step([1.0, *DYING], 1.0)]
    assert finding.parameters[0] == "p1"
