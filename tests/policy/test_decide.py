"""The decision is pure, keeps to cooldowns, budgets and ladders, and gives a reason for all that it does not do."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gradguard.policy.decide import choose_rung, decide
from gradguard.policy.history import RuleHistory, charge, dump_histories, learn, load_histories
from gradguard.policy.schema import Policy
from gradguard.records import Cause, Finding


LAW = settings(max_examples=80, deadline=None, derandomize=True)
VERDICTS = ("helped", "no_effect", "worse", "unknown")
LADDER = [{"after": 3, "within": 10, "do": "rollback"}, {"after": 2, "within": 50, "do": "stop"}]


def policy(*rules, mode="enforce", **options):
    return Policy.model_validate({"rules": list(rules), "mode": mode, "sinks": [], **options})


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
    within = max(after, within)
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
    ladder = [{**LADDER[0], "within": 40}, LADDER[1]]  # long enough for any of these cooldowns
    subject = policy(rule(do=["skip_step", "notify"], cooldown=cooldown, budget=budget, escalate=ladder), rule("s"))
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


def judge(histories, verdict, rung=0, step=0, name="r"):
    """Return the histories after an action of a rule was judged."""
    return {**histories, name: learn(histories[name], rung, step, verdict)}


def test_a_rung_acts_when_the_one_below_was_judged_to_have_no_effect():
    subject = policy(rule(escalate=[{"if_outcome": "no_effect", "do": "rollback"}]))
    first = decide_all(subject, 0)
    assert acted(first) == [("skip_step", 0, "fired")]
    assert acted(decide_all(subject, 1, first.histories)) == [("skip_step", 0, "fired")]
    for verdict, remedy in [("no_effect", "rollback"), ("helped", "skip_step"), ("worse", "skip_step")]:
        assert acted(decide_all(subject, 60, judge(first.histories, verdict)))[0][0] == remedy


def test_a_rung_may_ask_for_one_of_several_verdicts():
    (subject,) = policy(rule(escalate=[{"if_outcome": ["no_effect", "worse"], "do": "rollback"}])).rules
    histories = {verdict: learn(RuleHistory(1, 0, ((0,), ())), 0, 0, verdict) for verdict in VERDICTS}
    assert {verdict for verdict in VERDICTS if choose_rung(subject, histories[verdict], 9)} == {"no_effect", "worse"}


def test_the_verdict_that_came_last_counts():
    (subject,) = policy(rule(escalate=[{"if_outcome": "no_effect", "do": "rollback"}])).rules
    history = RuleHistory(2, 5, ((0, 5), ()))
    for step, verdict, rung in [(0, "no_effect", 1), (5, "helped", 0)]:
        history = learn(history, 0, step, verdict)
        assert choose_rung(subject, history, 60) == rung


def test_all_that_a_rung_asks_for_must_hold():
    ladder = [{"after": 2, "within": 10, "if_outcome": "no_effect", "do": "rollback"}]
    (subject,) = policy(rule(escalate=ladder)).rules
    history = RuleHistory(2, 5, ((4, 5), ()))
    assert choose_rung(subject, history, 6) == 0
    assert choose_rung(subject, learn(history, 0, 4, "no_effect"), 6) == 1
    assert choose_rung(subject, learn(history, 0, 4, "no_effect"), 16) == 0
    assert choose_rung(subject, learn(RuleHistory(1, 5, ((5,), ())), 0, 5, "no_effect"), 6) == 0


def test_a_verdict_may_be_too_old():
    ladder = [{"if_outcome": "no_effect", "within": 100, "do": "rollback"}]
    (subject,) = policy(rule(escalate=ladder)).rules
    history = learn(RuleHistory(1, 7, ((7,), ())), 0, 7, "no_effect")
    assert [choose_rung(subject, history, step) for step in (57, 107, 108)] == [1, 1, 0]


def test_what_was_done_before_a_higher_rung_acted_says_nothing_about_the_present():
    """The lowest rung starts afresh; its last actions are still judged, after the horizon."""
    subject = policy(rule(escalate=[{"if_outcome": "no_effect", "do": "rollback"}]))
    histories = {}
    for step in (0, 30):
        histories = decide_all(subject, step, histories).histories
    histories = decide_all(subject, 60, judge(histories, "no_effect", step=0)).histories
    assert histories["r"].judged[0] is None
    histories = judge(histories, "no_effect", step=30)
    assert acted(decide_all(subject, 90, histories)) == [("skip_step", 0, "fired")]


def test_a_higher_rung_that_did_not_help_leads_to_the_next():
    ladder = [{"if_outcome": "no_effect", "do": "rollback"}, {"if_outcome": ["no_effect", "worse"], "do": "stop"}]
    subject = policy(rule(escalate=ladder))
    histories, done = {}, []
    for step in (0, 60, 120, 180):
        decision = decide_all(subject, step, histories)
        ((remedy, rung, _),) = acted(decision)
        done.append(remedy)
        histories = judge(decision.histories, "no_effect", rung, step)
    assert done == ["skip_step", "rollback", "skip_step", "stop"]


@pytest.mark.parametrize("on_budget", ["stop", "record"])
def test_when_the_budget_of_the_run_is_spent_it_is_stopped_or_only_recorded(on_budget):
    subject = policy(rule(do=["skip_step", "notify"]), budget=2, on_budget=on_budget)
    histories = {"other": RuleHistory(charged=(1,)), "r": RuleHistory(charged=(3,))}
    decision = decide_all(subject, 9, histories)
    expected = [("notify", 0, "fired")] + ([("stop", 0, "gave_up")] if on_budget == "stop" else [])
    assert acted(decision) == expected
    assert held(decision) == [("r", "skip_step", "budget")]
    assert "2 actions in vain" in decision.withheld[0].detail
    assert decision.histories["r"].actions == 0


def test_several_rules_of_one_step_share_what_is_left_of_the_budget_in_order():
    clip = {"clip_norm": {"max_norm": 1.0}}
    subject = policy(rule("a", clip), rule("told", "notify"), rule("b", clip), budget=1, on_budget="record")
    decision = decide_all(subject)
    assert [action.rule.name for action in decision.actions] == ["told", "a"]
    assert held(decision) == [("b", "clip_norm", "budget")]


def test_only_what_lies_within_counts_against_the_budget():
    subject = policy(rule(), budget=2, budget_within=10)
    histories = {"r": RuleHistory(charged=(0, 5))}
    assert [acted(decide_all(subject, step, histories))[0][0] for step in (10, 11)] == ["stop", "skip_step"]


@pytest.mark.parametrize(
    ("verdict", "charged"), [("helped", ()), ("unknown", ()), ("no_effect", (3,)), ("worse", (3,))]
)
def test_what_helped_is_given_back(verdict, charged):
    history = charge(RuleHistory(), 3, None)
    assert learn(history, 0, 3, verdict).charged == charged


def test_no_more_is_remembered_than_the_budget_reads():
    history = RuleHistory()
    for step in range(100):
        history = charge(history, step, within=10)
    assert history.charged == tuple(range(89, 100))


def test_a_parameter_is_acted_on_no_more_often_than_its_budget_and_the_others_still_are():
    subject = policy(rule(do={"rescale": {"factor": 0.5}}, budget_per_parameter=2))
    histories, rows = {}, []
    for step, indices in enumerate([(0, 1), (0,), (0, 1), (0, 1), (1,), (0, 1), ()]):
        found = finding(step).model_copy(update={"indices": indices})
        decision = decide(subject, [(subject.rules[0], found)], histories, step, ["a", "b"])
        histories = decision.histories
        rows.append([action.finding.indices for action in decision.actions])
    assert rows == [[(0, 1)], [(0,)], [(1,)], [], [], [], [()]]
    assert histories["r"].by_parameter == {"a": 2, "b": 2}
    (item,) = decide(
        subject, [(subject.rules[0], found.model_copy(update={"indices": (0,)}))], histories, 9, ["a"]
    ).withheld
    assert (item.reason, item.detail) == ("budget", "every parameter concerned had its 2 actions")


class Reference:
    """One rule with a ladder of outcomes and counts and all budgets, step by step, from the list of all that happened.

    Every action is kept as [step, rung, verdict or None, position of the judgement among all].
    """

    def __init__(self, rungs, budget, within):
        self.rungs, self.budget, self.within = rungs, budget, within
        self.done = []
        self.clock = 0

    def of_rung(self, rung):
        """Actions of a rung that count: for the lowest, those since a higher one acted."""
        since = max((i for i, action in enumerate(self.done) if action[1] > 0), default=-1) if rung == 0 else -1
        return [action for i, action in enumerate(self.done) if action[1] == rung and i > since]

    def rung(self, step):
        for rung, (after, within, verdicts) in enumerate(self.rungs):
            actions = self.of_rung(rung)
            if after is not None and sum(step - action[0] <= within for action in actions) < after:
                return rung
            judged = [action for action in actions if action[2] is not None]
            if verdicts:
                last = max(judged, key=lambda action: action[3], default=None)
                if last is None or last[2] not in verdicts or (within is not None and step - last[0] > within):
                    return rung
        return len(self.rungs)

    def step(self, step):
        counted = [a for a in self.done if a[2] not in ("helped", "unknown") and step - a[0] <= (self.within or 10**9)]
        if self.budget is not None and len(counted) >= self.budget:
            return None
        rung = self.rung(step)
        self.done.append([step, rung, None, 0])
        return rung

    def judge(self, position, verdict):
        self.clock += 1
        self.done[position][2:] = [verdict, self.clock]


CONDITIONS = st.one_of(
    st.tuples(st.integers(1, 3), st.integers(3, 30), st.just(())),
    st.tuples(
        st.none(), st.one_of(st.none(), st.integers(1, 40)), st.sampled_from([("no_effect",), ("worse", "helped")])
    ),
    st.tuples(st.integers(1, 3), st.integers(3, 30), st.just(("no_effect", "worse"))),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rungs=st.lists(CONDITIONS, min_size=1, max_size=3),
    events=st.lists(st.tuples(st.integers(1, 12), st.sampled_from([None, *VERDICTS]), st.booleans()), max_size=40),
    budget=st.one_of(st.none(), st.integers(0, 6)),
    within=st.one_of(st.none(), st.integers(1, 60)),
)
def test_ladders_and_budgets_are_those_of_a_slow_reference(rungs, events, budget, within):
    """Actions are judged in the order in which they were made, at any later time; states are saved in between."""
    ladder = [
        {
            "do": "skip_step",
            **({"after": after} if after else {}),
            **({"within": w} if w else {}),
            "if_outcome": verdicts,
        }
        for after, w, verdicts in rungs
    ]
    subject = policy(rule(escalate=ladder), budget=budget, budget_within=within, on_budget="record")
    reference, histories, step, waiting = Reference(rungs, budget, within), {}, 0, []
    for gap, verdict, is_saved in events:
        step += gap
        if verdict is not None and waiting:
            position = waiting.pop(0)
            at, rung = reference.done[position][:2]
            reference.judge(position, verdict)
            histories = judge(histories, verdict, rung, at)
        if is_saved:
            histories = load_histories(dump_histories(histories))
        expected = reference.step(step)
        decision = decide_all(subject, step, histories)
        assert [action.rung for action in decision.actions] == ([] if expected is None else [expected])
        histories = dict(decision.histories)
        if expected is not None:
            histories["r"] = charge(histories["r"], step, within)
            waiting.append(len(reference.done) - 1)


@pytest.mark.parametrize(("step", "is_acted_on"), [(0, True), (20, True), (21, False)])
def test_a_rule_acts_until_its_last_step(step, is_acted_on):
    (decision,) = run(policy(rule(until=20)), [step])
    assert bool(decision.actions) == is_acted_on
    assert held(decision) == ([] if is_acted_on else [("r", "skip_step", "too_late")])


@pytest.mark.parametrize(("cause", "is_acted_on"), [(None, True), ("bad_inputs", True), ("stale_gradients", False)])
def test_a_rule_leaves_alone_what_follows_from_what_it_names(cause, is_acted_on):
    subject = policy(rule(when="dead_units", unless_follows="stale_gradients"))
    follows = Cause(diagnosis=cause, step=3) if cause else None
    found = Finding(diagnosis="dead_units", step=9, severity="warn", follows=follows)
    decision = decide(subject, [(subject.rules[0], found)], {}, 9)
    assert bool(decision.actions) == is_acted_on
    assert held(decision) == ([] if is_acted_on else [("r", "skip_step", "consequence")])


@pytest.mark.parametrize("cause", ["stale_gradient", "plateau"])
def test_a_cause_that_a_diagnosis_never_follows_is_refused(cause):
    with pytest.raises(ValidationError, match=f"'dead_units' never follows '{cause}'.*may follow: nonfinite"):
        policy(rule(when="dead_units", unless_follows=cause))


@pytest.mark.parametrize(
    ("rules", "last"),
    [
        ([rule()], 0),
        (
            [rule(do="restart", until=30), rule("s", escalate=[{"after": 1, "within": 9, "do": "restart"}], until=60)],
            60,
        ),
        ([rule(do="restart"), rule("s", do="restart", until=60)], math.inf),
    ],
)
def test_the_start_is_needed_until_no_rule_can_go_back_to_it(rules, last):
    assert policy(*rules).needs_start_until() == last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget_within": 50}, "'budget_within' does nothing without `budget`"),
        ({"on_budget": "record"}, "'on_budget' does nothing without `budget`"),
    ],
)
def test_what_a_budget_s_options_are_about_must_be_there(options, message):
    with pytest.raises(ValidationError, match=message):
        policy(rule(), **options)
    policy(rule(), budget=3, **options)


@pytest.mark.parametrize("do", [["skip_step", "skip_step"], [{"capture": {"limit": 3}}, {"capture": {"limit": 3}}]])
def test_the_same_remedy_twice_is_refused(do):
    with pytest.raises(ValidationError, match="is there twice with the same options"):
        policy(rule(do=do))


def test_two_limits_of_one_remedy_are_no_twins():
    policy(rule(do=[{"clip_norm": {"max_norm": 1.0}}, {"clip_norm": {"max_norm": {"median_times": 3}}}]))
