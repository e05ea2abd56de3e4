"""From the record of a struck run to what the guard saw and did about the fault."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence

from gradguard.audit.read import Run as Record
from gradguard.drill.outcome import Seen
from gradguard.policy.schema import Policy
from gradguard.records import SEVERITIES, Finding, Intervention, Withheld


NOTICE = "notify"  # it changes nothing, so it is no answer to a fault
ENDING = "stop"  # after it nothing else counts


def read_seen(record: Record, policy: Policy, at: int, before: Collection[tuple[str, int]] = ()) -> Seen:
    """Return what the guard saw and did from step `at` on.

    Args:
        record: of the struck run.
        policy: that it was under.
        at: step at which the fault strikes.
        before: findings of the healthy run, as (diagnosis, step): they are not due to the fault.
    """
    findings = [
        finding
        for finding in record.findings
        if finding.step >= at and finding.severity != "info" and (finding.diagnosis, finding.step) not in before
    ]
    acted = [done for done in record.interventions if done.step >= at]
    changing = [done for done in acted if done.remedy != NOTICE]
    wanted = [entry for entry in record.withheld if entry.reason == "dry_run" and entry.remedy != NOTICE]
    first = _first(findings, [*changing, *wanted])
    return Seen(
        found=first.diagnosis if first else "",
        found_at=first.step if first else None,
        done=_main_first(changing, policy),
        instead="" if changing or first is None else _instead(first, acted, record.withheld),
        own_faults=own_faults(record),
    )


def own_faults(record: Record) -> tuple[str, ...]:
    """Return what failed in the guard itself or in a plugin, once each."""
    return tuple(dict.fromkeys(event.message for event in record.events if event.event == "internal_error"))


def _first(findings: Sequence[Finding], acted: Sequence[Intervention | Withheld]) -> Finding | None:
    """Return the first finding; of several at one step that which was acted on (or would be), else the most severe."""
    if not findings:
        return None
    step = min(finding.step for finding in findings)
    answered = {done.diagnosis for done in acted if done.step == step}
    here = [finding for finding in findings if finding.step == step]
    return max(here, key=lambda finding: (finding.diagnosis in answered, SEVERITIES.index(finding.severity)))


def _main_first(done: Sequence[Intervention], policy: Policy) -> tuple[tuple[str, int], ...]:
    """Return the remedies and how often they acted: those of the highest rung first, as the policy orders them."""
    ladders = {rule.name: rule.ladder() for rule in policy.rules}
    rank: dict[str, tuple[int, int]] = {}
    for action in done:
        rungs = ladders.get(action.rule, ())
        names = [remedy.name for remedy in rungs[action.rung]] if action.rung < len(rungs) else []
        place = names.index(action.remedy) if action.remedy in names else len(names)
        rank[action.remedy] = min(rank.get(action.remedy, (0, place)), (-action.rung, place))
    if ENDING in rank:
        rank[ENDING] = (-sys.maxsize, 0)
    counts = Counter(action.remedy for action in done)
    return tuple((name, counts[name]) for name in sorted(counts, key=rank.__getitem__))


def _instead(first: Finding, acted: Sequence[Intervention], withheld: Sequence[Withheld]) -> str:
    """Return why nothing was done about the first finding."""
    here = [entry for entry in withheld if entry.step == first.step and entry.diagnosis == first.diagnosis]
    would = dict.fromkeys(entry.remedy for entry in here if entry.reason == "dry_run" and entry.remedy != NOTICE)
    if would:
        return f"would {', '.join(would)}"
    if any(done.diagnosis == first.diagnosis for done in acted):
        return "told only"
    return here[0].reason.replace("_", " ") if here else ""
