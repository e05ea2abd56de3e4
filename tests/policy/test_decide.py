"""The decision is pure, keeps to cooldowns, budgets and ladders, and gives a reason for all that it does not do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.policy.decide import choose_rung, decide
from gradguard.policy.history import RuleHistory, dump_histories, load_histories
from gradguard.policy.schema import Policy
from gradguard.records import Finding


LAW = settings(max_examples=80, deadline=None, derandomize=True)
LADDER = [{"after": 3, "within": 10, "do": "rollback"}, {"after": 2, "within": 50, "do": "stop"}]


def policy(*rules, mode="enforce"):
    return Policy.model_validate({"rules": list(rules), "mode": mode, "sinks": []})


def rule(name="r", do="skip_step", when="nonfinite", **options):
    return {"name": name, "when": when, "do": do, **options}


def finding(step=0, severity="warn", diagnosis="nonfinite"):
    return Finding(diagnosis=diagnosis, step=step, severity=severity)


def decide_all(subject, step=0, histories=None, severity="warn"):
    return decide(subject, [(r, finding(step, severity)) for r in subject.rules], histories or {}, step)


def run(subject, steps, severity="warn"):
    """Return the decisions at steps where every rule's diagnosis found something."""
    histories, decisions = {}, []
    for step in steps:
        decisions.append(decide_all(subject, step, histories, severity))
        histories = decisions[-1].histories
    return decisions


def acted(decision):
    return [(action.remedy.name, action.rung, action.reason) for action in decision.actions]


def held(decision):
    return [(item.rule, item.remedy, item.reason) for item in decision.withheld]


def test_nothing_found_is_nothing_done():
    decision = decide(policy(rule()), [], {"r": RuleHistory(3, 1, ((1,),))}, 5)
    assert (decision.actions, decision.withheld) == ((), ())
    assert decision.histories == {"r": RuleHistory(3, 1, ((1,),))}


def test_a_rule_that_fires_applies_all_its_remedies():
    (decision,) = run(policy(rule(do=["skip_step", "notify", {"scale_lr": {"factor": 0.5}}])), [4])
    assert [action.remedy.name for action in decision.actions] == ["notify", "scale_lr", "skip_step"]
    assert {action.reason for action in decision.actions} == {"fired"}
    assert decision.histories["r"] == RuleHistory(actions=1, last_step=4, fired=((4,),), judged=(None,))


def test_a_decision_changes_nothing_that_it_was_given():
    subject = policy(rule(escalate=LADDER))
    histories = {"r": RuleHistory(1, 3, ((3,), (), ()))}
    kept = dict(histories)
    first, second = (decide_all(subject, 4, histories) for _ in range(2))
    assert histories == kept
    assert first == second


@pytest.mark.parametrize(
    ("least", "severity", "is_acted_on"),
    [("info", "info", True), ("warn", "info", False), ("warn", "critical", True), ("critical", "warn", False)],
)
def test_findings_below_the_rule_s_severity_are_not_acted_on(least, severity, is_acted_on):
    (decision,) = run(policy(rule(min_severity=least)), [0], severity)
    assert bool(decision.actions) == is_acted_on
    assert held(decision) == ([] if is_acted_on else [("r", "skip_step", "below_severity")])
    assert decision.histories.get("r", RuleHistory()).actions == is_acted_on


def test_after_an_action_a_rule_rests_for_its_cooldown():
    decisions = run(policy(rule(cooldown=3)), range(9))
    assert [bool(decision.actions) for decision in decisions] == [True, False, False, False] * 2 + [True]
    assert held(decisions[1]) == [("r", "skip_step", "cooldown")]


def test_without_a_cooldown_a_rule_acts_every_step():
    assert all(decision.actions for decision in run(policy(rule()), range(5)))


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_rule_acts_no_more_often_than_its_budget(budget):
    decisions = run(policy(rule(budget=budget)), range(5))
    assert [bool(decision.actions) for decision in decisions] == [step < budget for step in range(5)]
    assert held(decisions[-1]) == [("r", "skip_step", "budget")]


def test_a_rule_that_only_waits_has_the_history_that_it_had():
    decisions = run(policy(rule(cooldown=10)), [0, 1, 2])
    assert decisions[2].histories == decisions[0].histories


def test_a_rule_climbs_its_ladder():
    decisions = run(policy(rule(escalate=LADDER)), range(8))
    assert [acted(decision) for decision in decisions] == [
        *[[("skip_step", 0, "fired")]] * 3,
        [("rollback", 1, "escalated")],
        *[[("skip_step", 0, "fired")]] * 3,
        [("rollback", 1, "escalated")],
    ]


def test_the_highest_rung_acts_once_the_one_below_is_used_up():
    decisions = run(policy(rule(escalate=[{"after": 1, "within": 10, "do": "rollback"}, LADDER[1]])), range(6))
    names = [acted(decision)[0][0] for decision in decisions]
    assert names == ["skip_step", "rollback", "skip_step", "rollback", "skip_step", "stop"]


def test_what_lies_further_back_than_within_does_not_count():
    decisions = run(policy(rule(escalate=LADDER)), range(0, 60, 6))
    assert {acted(decision)[0][0] for decision in decisions} == {"skip_step"}


@LAW
@given(st.lists(st.integers(1, 20), max_size=25), st.integers(1, 4), st.integers(1, 30), st.integers(1, 3))
def test_a_rung_acts_exactly_when_the_one_below_is_used_up(gaps, after, within, second_after):
    """Written out step by step: count, within the window, since a higher rung last acted."""
    ladder = [
        {"after": after, "within": within, "do": "rollback"},
        {"after": second_after, "within": 100, "do": "stop"},
    ]
    steps, own, first = [sum(gaps[:i]) for i in range(1, len(gaps) + 1)], [], []
    for step, decision in zip(steps, run(policy(rule(escalate=ladder)), steps), strict=True):
        if sum(step - past <= within for past in own) < after:
            expected, own = 0, [*own, step]
        elif sum(step - past <= 100 for past in first) < second_after:
            expected, own, first = 1, [], [*first, step]
        else:
            expected, own = 2, []
        assert decision.actions[0].rung == expected


@LAW
@given(st.lists(st.integers(1, 8), max_size=25), st.integers(0, 10), st.one_of(st.none(), st.integers(0, 5)))
def test_everything_found_is_either_acted_on_or_has_its_reason(gaps, cooldown, budget):
    subject = policy(rule(do=["skip_step", "notify"], cooldown=cooldown, budget=budget, escalate=LADDER), rule("s"))
    steps = [sum(gaps[:i]) for i in range(1, len(gaps) + 1)]
    for decision in run(subject, steps):
        accounted = {action.rule.name for action in decision.actions} | {item.rule for item in decision.withheld}
        assert accounted == {"r", "s"}
        assert all(item.reason for item in decision.withheld)


def test_the_gravest_verdict_supersedes_the_others_and_the_changes_to_gradients():
    subject = policy(
        rule("clip", {"clip_norm": {"max_norm": 1.0}}),
        rule("skip", ["skip_step", {"scale_lr": {"factor": 0.5}}]),
        rule("stop", "stop"),
        rule("back", ["rollback", "notify"]),
    )
    (decision,) = run(subject, [0])
    assert [action.remedy.name for action in decision.actions] == ["notify", "scale_lr", "stop"]
    assert sorted(held(decision)) == [
        ("back", "rollback", "superseded"),
        ("clip", "clip_norm", "superseded"),
        ("skip", "skip_step", "superseded"),
    ]


def test_of_equal_verdicts_the_first_in_the_policy_stands():
    (decision,) = run(policy(rule("first"), rule("second")), [0])
    assert [action.rule.name for action in decision.actions] == ["first"]
    assert held(decision) == [("second", "skip_step", "superseded")]


def test_changes_to_gradients_are_applied_from_the_entries_to_the_norm():
    subject = policy(
        rule("a", {"clip_norm": {"max_norm": 1.0}}),
        rule("b", {"clip_value": {"max_value": 1.0}}),
        rule("c", {"rescale": {"factor": 0.5}}),
        rule("d", "zero_nonfinite"),
        rule("e", {"scale_lr": {"factor": 0.5}}),
    )
    (decision,) = run(subject, [0])
    assert [action.remedy.name for action in decision.actions] == [
        "scale_lr",
        "zero_nonfinite",
        "rescale",
        "clip_value",
        "clip_norm",
    ]


def test_several_clips_all_stand_so_that_the_smallest_norm_results():
    subject = policy(*[rule(f"r{norm}", {"clip_norm": {"max_norm": norm}}) for norm in (2.0, 1.0, 3.0)])
    (decision,) = run(subject, [0])
    assert [action.remedy.max_norm for action in decision.actions] == [2.0, 1.0, 3.0]


def test_observing_records_what_would_have_been_done():
    subject = policy(rule("a", ["skip_step", "notify"]), rule("b", "stop"), mode="observe")
    (decision,) = run(subject, [0])
    assert decision.actions == ()
    assert sorted(held(decision)) == [
        ("a", "notify", "dry_run"),
        ("a", "skip_step", "superseded"),
        ("b", "stop", "dry_run"),
    ]


@LAW
@given(st.lists(st.integers(1, 8), max_size=20))
def test_observing_climbs_the_ladder_as_enforcing_does(gaps):
    steps = [sum(gaps[:i]) for i in range(1, len(gaps) + 1)]
    enforced, observed = (
        run(policy(rule(escalate=LADDER, cooldown=2), mode=mode), steps) for mode in ("enforce", "observe")
    )
    assert [d.histories for d in enforced] == [d.histories for d in observed]


@LAW
@given(st.lists(st.integers(1, 8), max_size=20), st.integers(0, 20))
def test_saved_histories_decide_as_before(gaps, cut):
    subject = policy(rule(escalate=LADDER, budget=15), rule("s", cooldown=3))
    steps = [sum(gaps[:i]) for i in range(1, len(gaps) + 1)]
    expected = [acted(decision) for decision in run(subject, steps)]
    histories, found = {}, []
    for index, step in enumerate(steps):
        if index == cut:
            histories = load_histories(dump_histories(histories))
        decision = decide_all(subject, step, histories)
        histories = decision.histories
        found.append(acted(decision))
    assert found == expected


def test_a_history_of_a_shorter_ladder_still_chooses():
    """A policy may have grown since a run was saved."""
    (subject,) = policy(rule(escalate=LADDER)).rules
    assert choose_rung(subject, RuleHistory(2, 1, ((0, 1),)), 2) == 0
    assert choose_rung(subject, RuleHistory(3, 2, ((0, 1, 2),)), 3) == 1
