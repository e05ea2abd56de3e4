"""The zoo runs: a smoke test with a few of its set-ups, cut short."""

import doctest
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.zoo import interval, result
from benchmarks.zoo.catalogue import ZOO, choose
from benchmarks.zoo.result import dump, run
from benchmarks.zoo.tables import show
from benchmarks.zoo.train import train


def short(id, steps):
    return replace(ZOO[id], steps=steps)


@pytest.mark.parametrize("id", ["H03", "H14"])
def test_a_healthy_run_is_left_alone_bit_for_bit(id):
    outcome = run(short(id, 25), seed=0)
    assert outcome.is_identical
    assert outcome.guarded == outcome.unguarded
    assert not outcome.loud
    assert outcome.acted == 0


@pytest.mark.parametrize(("id", "diagnosis", "step"), [("F13", "nonfinite", 0), ("F33", "stale_gradients", 3)])
def test_a_failing_run_is_detected_and_named(id, diagnosis, step):
    outcome = run(short(id, 8), seed=0)
    assert outcome.is_named
    assert [(alarm.diagnosis, alarm.first_step) for alarm in outcome.loud] == [(diagnosis, step)]
    assert outcome.latency == step


def test_a_fault_strikes_the_run_and_not_its_reference():
    struck = replace(ZOO["T-nan-batch@H01"], steps=8, faults=(replace(ZOO["T-nan-batch@H01"].faults[0], at=4),))
    outcome = run(struck, seed=0)
    assert outcome.unguarded == 0.0
    assert outcome.reference > 0.0
    assert outcome.is_near_reference(0.5)
    assert outcome.interventions == {"skip_step": 1, "notify": 1}


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    digests = [train(short("H14", 3), seed).digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_every_set_up_of_the_survey_is_there_and_can_be_built():
    ids = {id.partition("@")[0] for id in ZOO}
    assert {f"F{number:02}" for number in range(1, 43)} | {f"H{number:02}" for number in range(1, 48)} <= ids
    for setup in ZOO.values():
        assert (setup.repair is not None) == bool(setup.expected) == (setup.group == "failing")


def test_patterns_choose_ids_and_groups():
    assert [setup.id for setup in choose(["F0[12]", "H01"])] == ["H01", "F01", "F02"]
    assert {setup.group for setup in choose(["transient"])} == {"transient"}
    with pytest.raises(ValueError, match="no set-up matches 'F99'; known: H01, H02"):
        choose(["F99"])


def test_the_tables_show_every_group_and_the_numbers_are_valid_json():
    results = [run(short(id, 4), seed=0) for id in ("H33", "F13", "T-nan-batch@H01")]
    text = io.StringIO()
    show(Console(file=text, width=200), results)
    for told in ("left alone, bit for bit: 1 of 1", "nonfinite 1", "recovered: 1 of 1"):
        assert told in text.getvalue()
    numbers = json.loads(dump(results), parse_constant=pytest.fail)
    assert [entry["id"] for entry in numbers] == ["H33", "F13", "T-nan-batch@H01"]
    assert numbers[1]["loss"] == ["NaN"] * 4


@pytest.mark.parametrize("module", [interval, result])
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0
