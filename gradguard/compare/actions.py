"""What the guard did in two runs, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from gradguard.audit.read import Run
from gradguard.audit.responses import Response, responses
from gradguard.records import Frozen


class Action(Frozen):
    """What was done about one thing at one step, in one of the runs or in both.

    Args:
        step: optimizer step.
        diagnosis: what was found.
        remedy: what was done, "rollback + scale_lr" when it was done together.
        parameter: the parameter that was worst, "" when none was named.
        in_a: the first run has it.
        in_b: the second has it.
        is_common: both runs have the step.
        verdict_a: how it was judged there, None when it was not or is not there.
        verdict_b: likewise.
    """

    step: int
    diagnosis: str
    remedy: str
    parameter: str
    in_a: bool
    in_b: bool
    is_common: bool
    verdict_a: str | None = None
    verdict_b: str | None = None


class ActionCount(Frozen):
    """One remedy against one diagnosis in two runs.

    Args:
        diagnosis: what was found.
        remedy: what was done.
        count_a: how often in the first run.
        count_b: how often in the second.
        count_both: how often at the same step in both.
        helped_a: how often it helped in the first run.
        helped_b: how often in the second.
        judged_a: how often it was judged in the first run, "unknown" apart.
        judged_b: how often in the second.
    """

    diagnosis: str
    remedy: str
    count_a: int
    count_b: int
    count_both: int
    helped_a: int
    helped_b: int
    judged_a: int
    judged_b: int


def align_actions(run_a: Run, run_b: Run, common: Collection[int]) -> tuple[Action, ...]:
    """Return what was done in both runs in the order of the steps; the same at the same step is one.

    Args:
        run_a: the first run.
        run_b: the second.
        common: steps that both have.
    """
    waiting: dict[tuple[int, str, str], list[Response]] = {}
    for event in responses(run_b.interventions):
        waiting.setdefault(_key(event), []).append(event)
    actions = []
    for event in responses(run_a.interventions):
        partners = waiting.get(_key(event))
        actions.append(_action(event, partners.pop(0) if partners else None, common))
    actions += [_action(None, event, common) for events in waiting.values() for event in events]
    return tuple(sorted(actions, key=lambda action: action.step))


def count_actions(actions: Sequence[Action]) -> tuple[ActionCount, ...]:
    """Return the actions by diagnosis and remedy, in the order in which these first came."""
    groups: dict[tuple[str, str], list[Action]] = {}
    for action in actions:
        groups.setdefault((action.diagnosis, action.remedy), []).append(action)
    rows = []
    for (diagnosis, remedy), members in groups.items():
        a, b = Counter(one.verdict_a for one in members), Counter(one.verdict_b for one in members)
        rows.append(
            ActionCount(
                diagnosis=diagnosis,
                remedy=remedy,
                count_a=sum(one.in_a for one in members),
                count_b=sum(one.in_b for one in members),
                count_both=sum(one.in_a and one.in_b for one in members),
                helped_a=a["helped"],
                helped_b=b["helped"],
                judged_a=a["helped"] + a["no_effect"] + a["worse"],
                judged_b=b["helped"] + b["no_effect"] + b["worse"],
            )
        )
    return tuple(rows)


def _key(event: Response) -> tuple[int, str, str]:
    return event.step, event.diagnosis, " + ".join(event.remedies)


def _action(a: Response | None, b: Response | None, common: Collection[int]) -> Action:
    event = a if a is not None else b
    assert event is not None
    finding = event.records[0].finding
    names = finding.parameters if finding is not None else ()
    return Action(
        step=event.step,
        diagnosis=event.diagnosis,
        remedy=" + ".join(event.remedies),
        parameter=names[0] if names else "",
        in_a=a is not None,
        in_b=b is not None,
        is_common=event.step in common,
        verdict_a=a.verdict if a is not None else None,
        verdict_b=b.verdict if b is not None else None,
    )
