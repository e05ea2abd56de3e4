"""The decision: pure, from policy, findings and what the rules did before.

findings + RuleHistory --decide--> Decision (actions, and non-actions with their reasons)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradguard.contracts import Remedy
from gradguard.policy.history import RuleHistory, advance
from gradguard.policy.schema import Policy, Rule
from gradguard.records import SEVERITIES, Finding, Reason, Severity, WithheldReason


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
    detail: str = ""


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
    names: Sequence[str] = (),
) -> Decision:
    """Return what to do about one step's findings.

    Rules fire in the policy's order. Among verdicts on the step the highest rank wins (stop > restart > rollback >
    skip) and supersedes the others as well as every change to gradients; learning-rate factors, notices and the like
    all apply. Surgery comes last: on the state that a rollback has restored.

    Args:
        policy: gives the mode, and the budget of the run.
        findings: (rule, finding) for every rule whose diagnosis found something.
        histories: by rule name; a missing one counts as empty.
        step: this optimizer step.
        names: of the parameters that the indices of a finding are about; not read unless a rule has a budget for each.
    """
    planned: list[Action] = []
    withheld: list[NonAction] = []
    after = dict(histories)
    left = budget_left(policy, histories, step)
    for rule, finding in findings:
        history = histories.get(rule.name, RuleHistory())
        due = _on_parameters_left(rule, finding, history, names)
        is_spent = bool(finding.indices) and not due.indices
        cause = finding.follows.diagnosis if finding.follows is not None else None
        reason = reason_to_wait(rule, finding.severity, history, step, cause) or ("budget" if is_spent else None)
        if reason is not None:
            detail = _whose_budget(rule, is_spent) if reason == "budget" else ""
            withheld.extend(NonAction(finding, reason, rule.name, remedy.name, 0, detail) for remedy in rule.do)
            continue
        rung = choose_rung(rule, history, step)
        remedies = rule.ladder()[rung]
        changes = [remedy for remedy in remedies if remedy.kind != "notice"]
        if changes and left is not None and left <= 0:
            detail = f"the run had its {_actions(policy.budget)} in vain"
            withheld.extend(NonAction(finding, "budget", rule.name, change.name, rung, detail) for change in changes)
            planned.extend(Action(rule, finding, last, rung, "gave_up") for last in policy.when_spent())
            remedies = tuple(remedy for remedy in remedies if remedy not in changes)
        else:
            limited = [names[row] for row in due.indices] if rule.budget_per_parameter is not None else ()
            after[rule.name] = advance(rule, history, rung, step, limited)
            left = left - 1 if left is not None and changes else left
        planned.extend(Action(rule, due, remedy, rung, "escalated" if rung else "fired") for remedy in remedies)
    actions, superseded = _settle(planned)
    withheld.extend(superseded)
    if policy.mode == "observe":
        withheld.extend(NonAction(a.finding, "dry_run", a.rule.name, a.remedy.name, a.rung) for a in actions)
        actions = []
    return Decision(tuple(actions), tuple(withheld), after)


def budget_left(policy: Policy, histories: Mapping[str, RuleHistory], step: int) -> int | None:
    """Return how many actions the budget of the run still allows at this step, None where there is no limit."""
    if policy.budget is None:
        return None
    within = policy.budget_within
    spent = [past for history in histories.values() for past in history.charged]
    return policy.budget - sum(1 for past in spent if within is None or step - past <= within)


def reason_to_wait(
    rule: Rule, severity: Severity, history: RuleHistory, step: int, cause: str | None = None
) -> WithheldReason | None:
    """Return why a rule does not act at this step on a finding of this severity and cause, None when it does."""
    if SEVERITIES.index(severity) < SEVERITIES.index(rule.min_severity):
        return "below_severity"
    if cause in rule.unless_follows:
        return "consequence"
    if rule.until is not None and step > rule.until:
        return "too_late"
    if rule.budget is not None and history.actions >= rule.budget:
        return "budget"
    if history.last_step is not None and step - history.last_step <= rule.cooldown:
        return "cooldown"
    return None


def would_drop(policy: Policy, histories: Mapping[str, RuleHistory], step: int) -> bool:
    """Return whether a rule would have micro-batches dropped at this step, or the whole step on their account."""
    for rule in policy.rules:
        ladder = rule.ladder()
        is_about_them = any("microbatches" in remedy.needs for remedies in ladder for remedy in remedies)
        history = histories.get(rule.name, RuleHistory())
        if is_about_them and reason_to_wait(rule, "warn", history, step) is None:
            remedies = ladder[choose_rung(rule, history, step)]
            if any("microbatches" in remedy.needs or remedy.kind == "verdict" for remedy in remedies):
                return True
    return False


def choose_rung(rule: Rule, history: RuleHistory, step: int) -> int:
    """Return the rung that acts now: the lowest that is not used up."""
    rung = 0
    while rung < len(rule.escalate) and _is_used_up(rule, history, rung, step):
        rung += 1
    return rung


def _is_used_up(rule: Rule, history: RuleHistory, rung: int, step: int) -> bool:
    """Return whether all that the next rung asks for holds."""
    limit = rule.escalate[rung]
    if limit.after is not None and limit.within is not None:
        fired = history.fired[rung] if rung < len(history.fired) else ()
        if sum(1 for past in fired if step - past <= limit.within) < limit.after:
            return False
    if not limit.if_outcome:
        return True
    judged = history.judged[rung] if rung < len(history.judged) else None
    if judged is None or judged[1] not in limit.if_outcome:
        return False
    return limit.within is None or step - judged[0] <= limit.within


def _on_parameters_left(rule: Rule, finding: Finding, history: RuleHistory, names: Sequence[str]) -> Finding:
    """Return the finding about those of its parameters whose budget is not spent."""
    if rule.budget_per_parameter is None:
        return finding
    spent = history.by_parameter
    left = tuple(row for row in finding.indices if spent.get(names[row], 0) < rule.budget_per_parameter)
    return finding.model_copy(update={"indices": left})


def _whose_budget(rule: Rule, is_each_spent: bool) -> str:
    if is_each_spent:
        return f"every parameter concerned had its {_actions(rule.budget_per_parameter)}"
    return f"the rule had its {_actions(rule.budget)}"


def _actions(count: int | None) -> str:
    return f"{count} action" if count == 1 else f"{count} actions"


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
