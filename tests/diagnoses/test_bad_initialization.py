"""bad_initialization: equal units, zeros everywhere, a signal that dies or blows up; healthy zeros are left alone."""

import math

import numpy as np
import pytest
from feed import Feed, diagnose
from probed import activations, output


def weights(spreads, norms=1.0, shape=(4, 4), names=None):
    feed = diagnose("bad_initialization", num_parameters=len(spreads), shape=shape)
    if names is not None:
        feed.table.names[:] = names
        feed.judgement = feed.fresh_judgement()
    feed.stats.weight_norms[:] = norms
    feed.stats.weight_spreads[:] = spreads
    return feed.repeat(3, 1.0, 1.0)


def places(seen, step=4):
    feed = diagnose("bad_initialization")
    feed.repeat(step, 1.0, 1.0)
    return feed.step(1.0, 1.0, activations=seen) + feed.step(1.0, 1.0, activations=seen)


def test_equal_rows_are_reported_once_before_the_first_step():
    (finding,) = weights([0.9, 0.0, 0.8])
    assert (finding.step, finding.severity, finding.parameters, finding.indices) == (0, "warn", ("p1",), (1,))


def test_zeros_in_most_matrices_are_reported():
    (finding,) = weights([math.nan, math.nan, 0.9], norms=[0.0, 0.0, 1.0])
    assert finding.parameters == ("p0", "p1")


def test_a_few_matrices_may_start_at_zero():
    """Heads, residual branches, the second half of an adapter."""
    assert weights([math.nan, 0.9, 0.9, math.nan], norms=[0.0, 1.0, 1.0, 0.0]) == []


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1, 3, 3)], ids=["vector", "one unit", "depthwise"])
def test_what_has_no_units_that_see_the_same_is_left_alone(shape):
    assert weights([0.0, 0.0, 0.0], shape=shape) == []


def test_scales_of_one_are_meant():
    assert weights([0.9, 0.0, 0.9], names=["a.weight", "a.layer_scale", "b.weight"]) == []


def test_a_rule_on_some_parameters_looks_at_these():
    feed = Feed({"when": "bad_initialization", "do": "notify", "parameters": ["p2"]}, num_parameters=3)
    feed.stats.weight_norms[:] = 1.0
    feed.stats.weight_spreads[:] = [0.0, 0.0, 0.9]
    assert feed.repeat(3, 1.0, 1.0) == []


@pytest.mark.parametrize(("base", "word"), [(0.2, "dies"), (5.0, "blows up")])
def test_a_signal_that_changes_from_layer_to_layer_is_reported(base, word):
    (finding,) = places(activations(kinds=["relu"] * 8, std=[base**i for i in range(8)]))
    assert word in finding.message
    assert finding.value == pytest.approx(base**6, rel=1e-3)
    assert finding.num_parameters == 8


@pytest.mark.parametrize(
    "std",
    [[1.0] * 8, [0.7**i for i in range(8)], [1.0, 1.0, 1e-5, 1.0, 1.0, 1.0, 1.0, 1e-4], [1.0, 1e-5], [0.0] * 8],
    ids=["even", "slow", "crooked", "two", "nothing"],
)
def test_other_signals_are_quiet(std):
    assert places(activations(kinds=["relu"] * len(std), std=std)) == []


def test_kinds_are_not_compared_with_each_other():
    kinds, std = ["relu", "softmax"] * 5, [1.0, 1e-4] * 5
    assert places(activations(kinds=kinds, std=std)) == []


def test_hidden_units_at_their_limits_are_reported_but_not_answers():
    full = activations(kinds=["tanh", "relu"], saturated=[0.94, math.nan], out=output(num_units=64))
    (finding,) = places(full)
    assert finding.parameters == ("a",)
    assert places(activations(kinds=["relu", "tanh"], saturated=[math.nan, 0.94], out=output(num_units=64))) == []


def test_later_on_activations_are_no_longer_those_of_the_start():
    assert places(activations(kinds=["tanh"], saturated=0.94), step=60) == []


def test_the_scale_of_the_activations_does_not_matter():
    base = np.array([0.2**i for i in range(8)])
    assert len(places(activations(kinds=["relu"] * 8, std=1e6 * base))) == 1


@pytest.mark.parametrize(("mean", "is_told"), [(0.997, False), (0.003, False), (0.4, True)])
def test_a_gate_that_starts_open_or_shut_is_meant_to(mean, is_told):
    gate = activations(kinds=["relu", "sigmoid"], saturated=[math.nan, 0.98], mean=[0.2, mean])
    assert bool(places(gate)) is is_told
