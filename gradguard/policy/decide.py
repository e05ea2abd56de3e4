"""The decision: pure, from policy, findings and what the rules did before.

findings + RuleHistory --decide--> Decision (actions, and non-actions with their reasons)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradguard.contracts import Remedy
from gradguard.policy.schema import Policy, Rule
from gradguard.records import SEVERITIES, Finding, Reason, Severity, WithheldReason


@dataclass(frozen=True)
class RuleHistory:
    """What one rule did so far.

    Args:
        actions: times it acted in this run; never reset.
        last_step: step of its last action, None before the first.
        fired: for every rung the steps at which it acted; the lowest rung's list is emptied when a higher one acts.
    """

    actions: int = 0
    last_step: int | None = None
    fired: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Action:
    """One remedy that is to be applied, for one rule and finding."""

    rule: Rule
    finding: Finding
    remedy: Remedy
    rung: int
    reason: Reason


@dataclass(frozen=True)
class NonAction:
    """One remedy that is not applied, or a finding without a rule, with the reason."""

    finding: Finding
    reason: WithheldReason
    rule: str = ""
    remedy: str = ""
    rung: int = 0


@dataclass(frozen=True)
class Decision:
    """What is done about the findings of one step.

    Args:
        actions: in the order in which they are to be applied.
        withheld: what was due and is not done.
        histories: every rule's history after this decision.
    """

    actions: tuple[Action, ...] = ()
    withheld: tuple[NonAction, ...] = ()
    histories: Mapping[str, RuleHistory] = field(default_factory=dict)


def decide(
    policy: Policy,
    findings: Sequence[tuple[Rule, Finding]],
    histories: Mapping[str, RuleHistory],
    step: int,
) -> Decision:
    """Return what to do about one step's findings.

    Rules fire in the policy's order. Among verdicts on the step the highest rank wins (stop > restart > rollback >
    skip) and supersedes the others as well as every change to gradients; learning-rate factors, notices and the like
    all apply. Surgery comes last: on the state that a rollback has restored.

    Args:
        policy: gives the mode.
        findings: (rule, finding) for every rule whose diagnosis found something.
        histories: by rule name; a missing one counts as empty.
        step: this optimizer step.
    """
    planned: list[Action] = []
    withheld: list[NonAction] = []
    after = dict(histories)
    for rule, finding in findings:
        history = histories.get(rule.name, RuleHistory())
        reason = reason_to_wait(rule, finding.severity, history, step)
        if reason is not None:
            withheld.extend(NonAction(finding, reason, rule.name, remedy.name) for remedy in rule.do)
            continue
        rung = choose_rung(rule, history, step)
        remedies = rule.ladder()[rung]
        after[rule.name] = advance(rule, history, rung, step)
        planned.extend(Action(rule, finding, remedy, rung, "escalated" if rung else "fired") for remedy in remedies)
    actions, superseded = _settle(planned)
    withheld.extend(superseded)
    if policy.mode == "observe":
        withheld.extend(NonAction(a.finding, "dry_run", a.rule.name, a.remedy.name, a.rung) for a in actions)
        actions = []
    return Decision(tuple(actions), tuple(withheld), after)


def reason_to_wait(rule: Rule, severity: Severity, history: RuleHistory, step: int) -> WithheldReason | None:
    """Return why a rule does not act on a finding of this severity at this step, None when it does."""
    if SEVERITIES.index(severity) < SEVERITIES.index(rule.min_severity):
        return "below_severity"
    if rule.budget is not None and history.actions >= rule.budget:
        return "budget"
    if history.last_step is not None and step - history.last_step <= rule.cooldown:
        return "cooldown"
    return None


def choose_rung(rule: Rule, history: RuleHistory, step: int) -> int:
    """Return the rung that acts now: the lowest that is not used up."""
    rung = 0
    while rung < len(rule.escalate):
        limit = rule.escalate[rung]
        fired = history.fired[rung] if rung < len(history.fired) else ()
        if sum(1 for past in fired if step - past <= limit.within) < limit.after:
            break
        rung += 1
    return rung


def advance(rule: Rule, history: RuleHistory, rung: int, step: int) -> RuleHistory:
    """Return a rule's history after it acted on a rung; once a higher rung acts, the lowest starts counting afresh."""
    fired = list(history.fired) + [()] * (len(rule.escalate) + 1 - len(history.fired))
    if rung > 0:
        fired[0] = ()
    horizon = rule.escalate[rung].within if rung < len(rule.escalate) else 0
    fired[rung] = (*(past for past in fired[rung] if step - past <= horizon), step)
    return replace(history, actions=history.actions + 1, last_step=step, fired=tuple(fired))


def _settle(planned: Sequence[Action]) -> tuple[list[Action], list[NonAction]]:
    """Return the actions that stand, in order of application, and those that a graver verdict supersedes."""
    verdicts = [action for action in planned if action.remedy.kind == "verdict"]
    verdict = max(verdicts, key=lambda action: action.remedy.rank, default=None)
    kept: list[Action] = [verdict] if verdict is not None else []
    superseded: list[NonAction] = []
    for action in planned:
        if action is verdict:
            continue
        if verdict is not None and action.remedy.kind in ("verdict", "gradient"):
            superseded.append(
                NonAction(action.finding, "superseded", action.rule.name, action.remedy.name, action.rung)
            )
        else:
            kept.append(action)
    order = {"notice": 0, "optimizer": 1, "gradient": 2, "verdict": 3, "surgery": 4}
    kept.sort(key=lambda action: (order[action.remedy.kind], action.remedy.rank))
    return kept, superseded


def dump_histories(histories: Mapping[str, RuleHistory]) -> dict[str, Any]:
    """Return histories as plain values for a state_dict."""
    return {
        name: {"actions": h.actions, "last_step": h.last_step, "fired": [list(steps) for steps in h.fired]}
        for name, h in histories.items()
    }


def load_histories(state: Mapping[str, Any]) -> dict[str, RuleHistory]:
    """Return histories from what `dump_histories` returned."""
    return {
        name: RuleHistory(h["actions"], h["last_step"], tuple(tuple(steps) for steps in h["fired"]))
        for name, h in state.items()
    }
