"""What the rules of a policy did so far and what came of it: all that a decision remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradguard.policy.schema import Rule
from gradguard.records import Verdict


GIVEN_BACK: tuple[Verdict, ...] = ("helped", "unknown")  # verdicts of actions that cost nothing of the run's budget


@dataclass(frozen=True)
class RuleHistory:
    """What one rule did so far.

    Args:
        actions: times it acted in this run; never reset.
        last_step: step of its last action, None before the first.
        fired: for every rung the steps at which it acted; the lowest rung's list is emptied when a higher one acts.
        judged: for every rung (step, verdict) of the action that was judged last, None while there is none; the lowest
            rung's is forgotten when a higher one acts.
        charged: steps of the actions that count against the budget of the run.
        by_parameter: {name: times that it acted on this parameter}, where the rule has a budget for each.
    """

    actions: int = 0
    last_step: int | None = None
    fired: tuple[tuple[int, ...], ...] = ()
    judged: tuple[tuple[int, Verdict] | None, ...] = ()
    charged: tuple[int, ...] = ()
    by_parameter: Mapping[str, int] = field(default_factory=dict)


def advance(rule: Rule, history: RuleHistory, rung: int, step: int, parameters: Iterable[str] = ()) -> RuleHistory:
    """Return a rule's history after it acted on a rung; once a higher rung acts, the lowest starts afresh.

    Args:
        rule: whose history it is.
        history: before.
        rung: that acted.
        step: at which.
        parameters: names of those that it acted on, each of which has a budget.
    """
    missing = len(rule.escalate) + 1 - len(history.fired)
    fired = list(history.fired) + [()] * missing
    judged = list(history.judged) + [None] * (len(fired) - len(history.judged))
    if rung > 0:
        fired[0], judged[0] = (), None
    horizon = (rule.escalate[rung].within or 0) if rung < len(rule.escalate) else 0
    fired[rung] = (*(past for past in fired[rung] if step - past <= horizon), step)
    by_parameter = dict(history.by_parameter)
    for name in parameters:
        by_parameter[name] = by_parameter.get(name, 0) + 1
    return replace(
        history,
        actions=history.actions + 1,
        last_step=step,
        fired=tuple(fired),
        judged=tuple(judged),
        by_parameter=by_parameter,
    )


def charge(history: RuleHistory, step: int, within: int | None) -> RuleHistory:
    """Return a rule's history after an action was carried out that counts against the budget of the run.

    Args:
        history: before.
        step: of the action.
        within: steps after which an action no longer counts, None for never.
    """
    kept = [past for past in history.charged if within is None or step - past <= within]
    return replace(history, charged=(*kept, step))


def learn(history: RuleHistory, rung: int, step: int, verdict: Verdict) -> RuleHistory:
    """Return a rule's history after one of its actions was judged.

    A verdict on the lowest rung that comes when a higher one has acted since says nothing about the present.

    Args:
        history: before.
        rung: that acted.
        step: of the action, not of the judgement.
        verdict: on it.
    """
    charged = history.charged
    if verdict in GIVEN_BACK:
        charged = tuple(past for past in charged if past != step)
    if rung == 0 and any(steps and steps[-1] >= step for steps in history.fired[1:]):
        return replace(history, charged=charged)
    judged = list(history.judged) + [None] * (rung + 1 - len(history.judged))
    judged[rung] = (step, verdict)
    return replace(history, judged=tuple(judged), charged=charged)


def dump_histories(histories: Mapping[str, RuleHistory]) -> dict[str, Any]:
    """Return histories as plain values for a state_dict."""
    return {
        name: {
            "actions": history.actions,
            "last_step": history.last_step,
            "fired": [list(steps) for steps in history.fired],
            "judged": [list(entry) if entry is not None else None for entry in history.judged],
            "charged": list(history.charged),
            "by_parameter": dict(history.by_parameter),
        }
        for name, history in histories.items()
    }


def load_histories(state: Mapping[str, Any]) -> dict[str, RuleHistory]:
    """Return histories from what `dump_histories` returned."""
    return {
        name: RuleHistory(
            actions=saved["actions"],
            last_step=saved["last_step"],
            fired=tuple(tuple(steps) for steps in saved["fired"]),
            judged=tuple((entry[0], entry[1]) if entry is not None else None for entry in saved["judged"]),
            charged=tuple(saved["charged"]),
            by_parameter=dict(saved["by_parameter"]),
        )
        for name, saved in state.items()
    }
