"""The presets that ship: all load, and each is what its name promises."""

from __future__ import annotations

import pytest

from gradguard.policy.load import PRESETS, load_preset, preset_names
from gradguard.policy.schema import Policy


def rule_names(preset: str) -> list[str]:
    return [rule.name for rule in load_preset(preset).rules]


def test_the_presets_are_those_that_are_documented() -> None:
    assert preset_names() == ["default", "finetune", "gan", "observe", "pretrain", "repair", "rnn"]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_survives_the_round_trip_through_json(name: str) -> None:
    policy = load_preset(name)
    assert Policy.model_validate(policy.model_dump(mode="json")) == policy


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_says_first_what_it_is_for(name: str) -> None:
    assert PRESETS.joinpath(f"{name}.yaml").read_text(encoding="utf-8").startswith(f"# {name}: ")


def test_observe_decides_as_default_does_and_changes_nothing() -> None:
    assert load_preset("observe") == load_preset("default").model_copy(update={"mode": "observe"})


@pytest.mark.parametrize("name", ["pretrain", "finetune", "rnn"])
def test_the_special_presets_keep_the_rules_of_default_and_clip_at_every_step(name: str) -> None:
    assert set(rule_names(name)) == {*rule_names("default"), "always-clip"}


@pytest.mark.parametrize("name", preset_names())
def test_every_ladder_of_a_preset_that_drops_steps_ends(name: str) -> None:
    """A rule that keeps skipping for ever would stop the training without saying so."""
    for rule in load_preset(name).rules:
        if rule.budget is None and any(remedy.kind == "verdict" for remedy in rule.do):
            assert rule.escalate, rule.name
            assert {remedy.name for remedy in rule.ladder()[-1]} & {"stop", "rebaseline"}, rule.name


def test_pretraining_looks_further_back_and_saves_more_rarely() -> None:
    policy = load_preset("pretrain")
    windows = {rule.name: getattr(rule.when, "window", None) for rule in policy.rules}
    assert (windows["tame-explosion"], windows["skip-loss-spike"], policy.snapshots.every) == (128, 128, 500)


def test_gan_never_takes_one_player_back_on_account_of_its_loss() -> None:
    rules = load_preset("gan").rules
    assert not {rule.when.name for rule in rules} & {"loss_spike", "divergence", "plateau", "oscillation"}
    going_back = {
        rule.name for rule in rules for rung in rule.ladder() for remedy in rung if "snapshots" in remedy.needs
    }
    assert going_back - {"drop-nonfinite", "tame-explosion"} == {"restore-weights"}
    skipping = [rule for rule in rules if rule.name == "drop-nonfinite"]
    assert [remedy.name for rung in skipping[0].ladder() for remedy in rung] == ["skip_step", "stop"]
