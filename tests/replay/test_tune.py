"""What healthy runs say about thresholds."""

import math

import pytest
from deferring import train
from hypothesis import given, settings
from hypothesis import strategies as st

import gradguard
from gradguard.policy.load import load_policy
from gradguard.replay.counting import Variant, count_alarms
from gradguard.replay.margins import diagnosis_of, measure_margins
from gradguard.replay.policy_text import policy_text
from gradguard.replay.rates import highest_rate, rate
from gradguard.replay.recorded import Recorded
from gradguard.replay.suggest import reason, suggest


RULES = [
    {"name": "spike", "when": {"loss_spike": {"warmup": 5, "ratio": 3}}, "do": "skip_step"},
    {"name": "drop", "when": "nonfinite", "do": "skip_step"},
    {"name": "clip", "when": "always", "do": {"clip_norm": {"max_norm": 1e30}}},
]
POLICY = gradguard.Policy.model_validate({"rules": RULES, "sinks": []})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with a step whose loss is above its usual: in the second so far that it is an alarm."""
    path = tmp_path_factory.mktemp("runs")
    for name, losses in ("calm", {30: 50.0}), ("lively", {30: 1e4}):
        train(RULES, "immediate", losses=losses, run_dir=path / name)
    return [Recorded(path / name) for name in ("calm", "lively")]


def test_a_threshold_is_where_replays_begin_to_alarm(runs):
    margins = measure_margins(runs, POLICY)
    assert margins.alarms == {"spike": 1, "drop": 0}
    assert margins.num_steps == 100
    for margin in margins.margins:
        if margin.edge is None:
            continue
        for factor, is_loud in (margin.quiet, False), (margin.loud, True):
            rule = margin.rule
            diagnosis = diagnosis_of(rule).model_copy(update=margin.values(factor))
            assert bool(count_alarms(runs, [Variant(diagnosis)])[0]) is is_loud
        assert max(margin.quiet, margin.loud) / min(margin.quiet, margin.loud) < 1.02
        assert margin.distance >= 1


def test_without_alarms_it_says_how_far_away_they_are(runs):
    """In the threshold's own unit: a value at which this run would have been found at fault."""
    margins = measure_margins(runs[:1], POLICY)
    assert margins.alarms == {"spike": 0, "drop": 0}
    near = [margin for margin in margins.margins if margin.edge is not None]
    assert near
    assert all(margin.quiet > margin.loud for margin in near)
    assert all(
        value < margin.values(1.0)[name] for margin in near for name, value in margin.values(margin.edge).items()
    )


@pytest.mark.parametrize("tighten", [False, True])
def test_what_is_suggested_is_a_policy_that_is_quiet_on_these_runs(runs, tmp_path, tighten):
    margins = measure_margins(runs, POLICY)
    suggestions = suggest(runs, margins, 1.5, tighten)
    assert [one.rule.name for one in suggestions] == ["spike"]
    assert suggestions[0].alarms == 0
    why = reason(suggestions[0], margins.num_steps)
    assert "1 false alarm in 100 steps" in why
    rules = tuple({one.rule.name: one.rule for one in suggestions}.get(rule.name, rule) for rule in POLICY.rules)
    changed = POLICY.model_copy(update={"rules": rules})
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text(["Suggested."], None, changed, {"spike": why}))
    loaded = load_policy(path)
    assert loaded.model_dump() == changed.model_dump()
    assert measure_margins(runs, loaded).alarms == {"spike": 0, "drop": 0}


def test_thresholds_that_are_far_away_come_nearer_when_that_is_wanted(runs):
    margins = measure_margins(runs[:1], POLICY)
    assert suggest(runs[:1], margins, 1.2) == []
    (suggestion,) = suggest(runs[:1], margins, 1.2, tighten=True)
    assert suggestion.factor < 1
    assert suggestion.alarms == 0
    assert "there was room to see more" in reason(suggestion, 50)


def test_a_rule_that_no_threshold_silences_has_no_suggestion(tmp_path):
    rules = [{"name": "drop", "when": "nonfinite", "do": "skip_step"}]
    train(rules, "immediate", losses={10: math.nan}, run_dir=tmp_path / "run")
    runs = [Recorded(tmp_path / "run")]
    margins = measure_margins(runs, runs[0].policy)
    assert margins.alarms == {"drop": 1}
    assert suggest(runs, margins, 1.5) == []


def test_infos_are_no_alarms_to_a_rule_that_does_not_act_on_them(runs):
    spike = POLICY.rules[0].when
    counts = count_alarms(runs, [Variant(spike, None, severity, True) for severity in ("info", "warn", "critical")])
    assert counts == [1, 1, 1]
    assert count_alarms(runs, [Variant(spike, ("body.*",), "warn", True)]) == [1]


@settings(deadline=None, derandomize=True)
@given(count=st.integers(0, 40), num_steps=st.integers(1, 10**7), confidence=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_bound_is_the_rate_at_which_so_few_are_a_rare_sight(count, num_steps, confidence):
    """The definition, summed term by term."""
    mean = highest_rate(count, num_steps, confidence) * num_steps / 1e5
    seen = sum(math.exp(-mean) * mean**index / math.factorial(index) for index in range(count + 1))
    assert seen == pytest.approx(1 - confidence, rel=1e-6)
    assert highest_rate(count, num_steps, confidence) > rate(count, num_steps)
