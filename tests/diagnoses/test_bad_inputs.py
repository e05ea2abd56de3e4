"""bad_inputs: what no layer is made for, but not masks, one-hot inputs, times, or what the model normalises itself."""

import math
from dataclasses import replace

import pytest
import torch
from feed import diagnose
from probed import activations, given

from gradguard.probes.boundary_statistics import BoundarySamples


def run(*inputs, probes=1, **seen):
    feed = diagnose("bad_inputs")
    found = []
    for _ in range(probes):
        found += feed.step(1.0, 1.0, activations=activations(inputs=inputs, **seen))
    return found


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"mean": 78.0, "std": 95.0, "largest": 255.0}, "large"),
        ({"mean": 1e-3, "std": 1.4e-3, "largest": 4e-3}, "small"),
        ({"mean": 2000.0, "std": 10.0, "largest": 2030.0}, "from zero"),
    ],
    ids=["pixels", "divided twice", "years"],
)
def test_inputs_out_of_scale_are_reported_once(fields, word):
    (finding,) = run(given(**fields), std=30.0 if word == "large" else 1e-3, probes=3)
    assert finding.severity == "warn"
    assert word in finding.message
    assert "Standardise" in finding.advice


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mean": 0.3, "std": 0.37, "largest": 1.0},
        {"mean": 1.0, "std": 0.0, "largest": 1.0},
        {"mean": 1e-3, "std": math.sqrt(1e-3 * (1 - 1e-3)), "largest": 1.0},
        {"mean": -5e8, "std": 5e8, "largest": 1e9},
        {"mean": 0.0, "std": 0.02, "largest": 0.9},
        {"mean": 500.0, "std": 288.0, "largest": 999.0, "shape": (64,)},
        {"mean": 500.0, "std": 288.0, "largest": 999.0, "shape": (64, 1)},
    ],
    ids=["standard", "images", "constant", "one-hot", "mask", "sound", "times", "one column"],
)
def test_usual_inputs_are_quiet(fields):
    assert run(given(**fields), std=30.0) == []


def test_a_model_that_normalises_its_inputs_is_only_told():
    (finding,) = run(given(std=95.0, largest=255.0), std=0.6)
    assert finding.severity == "info"


def test_nan_that_hurts_is_reported_at_any_probe_once_for_each_input():
    feed = diagnose("bad_inputs")
    sick = given(nonfinite=3)
    assert feed.step(1.0, 1.0, activations=activations(inputs=[given()])) == []
    assert feed.step(1.0, math.inf, activations=None) == []
    (finding,) = feed.step(1.0, 1.0, activations=activations(inputs=[sick]))
    assert (finding.severity, finding.value) == ("warn", 3)
    assert feed.step(1.0, 1.0, activations=activations(inputs=[sick])) == []
    assert feed.step(1.0, math.inf, activations=activations(inputs=[sick])) == []
    assert len(feed.step(1.0, math.inf, activations=activations(inputs=[given(name="1", nonfinite=1)]))) == 1


def test_nan_that_the_model_takes_for_missing_is_only_worth_knowing_until_it_hurts():
    feed = diagnose("bad_inputs")
    sick = activations(inputs=[given(nonfinite=3)])
    (finding,) = feed.step(1.0, 1.0, activations=sick)
    assert (finding.severity, "finite all the same" in finding.message) == ("info", True)
    assert feed.step(1.0, 1.0, activations=sick) == []
    (finding,) = feed.step(math.nan, 1.0, activations=sick)
    assert finding.severity == "warn"


@pytest.mark.parametrize("passes", [1, 8])
def test_nan_out_of_several_passes_is_not_put_down_to_this_step_alone(passes):
    seen = replace(activations(inputs=[given(nonfinite=3)]), num_passes=passes)
    (finding,) = diagnose("bad_inputs").step(1.0, 1.0, activations=seen)
    assert ("in the last 8 forward passes" in finding.message) == (passes == 8)


def test_a_mask_of_zeros_and_minus_infinity_holds_no_nan():
    assert run(given(mean=0.0, std=0.0, largest=0.0, nonfinite=99)) == []


def test_the_numbers_of_a_mask_of_the_lowest_float_do_not_overflow():
    samples = BoundarySamples()
    lowest = torch.finfo(torch.float32).min
    samples.take_inputs({"mask": torch.where(torch.arange(64).reshape(8, 8) % 3 == 0, lowest, 0.0)})
    arrived = {name: numbers.double().numpy() for name, numbers in samples.measure().items()}
    (mask,) = samples.input_stats(arrived)
    assert mask.largest == -lowest
    assert 0.0 < mask.std < mask.largest
    assert run(mask) == []
