"""A policy for another model, made fit for that of the drill."""

import pytest

from gradguard.drill.fit import fit, too_late
from gradguard.policy.load import load_policy
from gradguard.policy.schema import Policy


NAMES = ["block.weight", "block.bias", "head.weight", "head.bias"]


def policy(**rule):
    return Policy(rules=[{"name": "calm", "when": "exploding_gradient", "do": {"rescale": {"factor": 0.1}}, **rule}])


@pytest.mark.parametrize(
    ("patterns", "kept", "words"),
    [
        (["wte.*"], None, "no parameter like wte.*; drilled over all parameters"),
        (["wte.*", "lm_head.*"], None, "no parameter like wte.*, lm_head.*"),
        (["wte.*", "!*.bias"], ("!*.bias",), "drilled over all but *.bias"),
        (["wte.*", "head.*"], ("head.*",), "drilled over head.*"),
        (["wte.*", "!*"], None, "drilled over all parameters"),
    ],
)
def test_patterns_that_match_nothing_are_left_out_and_that_is_said(patterns, kept, words):
    fitted, (note,) = fit(policy(parameters=patterns), NAMES)
    assert fitted.rules[0].parameters == kept
    assert note.startswith("rule 'calm': ")
    assert words in note


@pytest.mark.parametrize("patterns", [["head.*"], ["*", "!*.bias"], ["!wte.*"], ["*.weight", "!wte.*"]])
def test_patterns_that_match_are_kept_without_a_word(patterns):
    fitted, notes = fit(policy(parameters=patterns), NAMES)
    assert (fitted.rules[0].parameters, notes) == (tuple(patterns), [])


def test_what_is_monitored_is_fitted_too():
    fitted, (note,) = fit(Policy(monitor={"parameters": ["wte.*"]}), NAMES)
    assert fitted.monitor.parameters == ("*",)
    assert note.startswith("monitor: ")


def test_nobody_is_told_of_a_drill():
    assert load_policy("default").sinks
    assert fit(load_policy("default"), NAMES)[0].sinks == ()


def test_what_comes_too_late_is_said_with_the_steps_that_it_needs():
    late = policy(when={"exploding_gradient": {"warmup": 500}})
    (note,) = too_late(late, at=50, num_steps=150)
    assert "--steps 1500" in note
    assert too_late(late, at=500, num_steps=1500) == []
    (note,) = too_late(policy(until=20), at=50, num_steps=150)
    assert "acts until step 20" in note


def test_the_default_has_nothing_to_note():
    assert too_late(load_policy("default"), at=50, num_steps=150) == []
