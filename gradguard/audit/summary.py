"""What happened in a run, as one value: computed here, shown by the command line or handed on as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np
from pydantic import Field, computed_field

from gradguard.audit.efficacy import Efficacy
from gradguard.audit.ending import Ending, ending
from gradguard.audit.headline import headline
from gradguard.audit.lasting import lasting
from gradguard.audit.matters import Matter, matters
from gradguard.audit.problem import Problem
from gradguard.audit.read import Run
from gradguard.audit.responses import ResponseGroup, groups, responses
from gradguard.record.statistics import Flag
from gradguard.records import SEVERITIES, Finding, Frozen, Intervention, Withheld


LAST_STEPS = 50  # the loss at the end is the median over so many observed losses


class ActionGroup(Frozen):
    """Interventions, or withheld actions, that have the same cause and remedy.

    Args:
        diagnosis: what was found, or "always".
        remedy: what was done, or was due; "" when no rule applied.
        reason: why nothing was done; "" for interventions.
        count: how many.
        first_step: step of the first.
        last_step: step of the last.
        worst_parameter: the parameter that was most often the worst; "" when none was named.
        outcomes: number of interventions by verdict ("helped", "no_effect", "worse", "unknown"), judged ones only.
    """

    diagnosis: str
    remedy: str
    reason: str = ""
    count: int
    first_step: int
    last_step: int
    worst_parameter: str = ""
    outcomes: dict[str, int] = Field(default_factory=dict)


class Chapter(Frozen):
    """One diagnosis of a run's story.

    Args:
        step: at which it was first found at severity "warn" or above.
        diagnosis: its name.
        follows: the diagnosis that it is a consequence of, "" when it stands for itself.
    """

    step: int
    diagnosis: str
    follows: str = ""


class Losses(Frozen):
    """The observed losses, finite ones only but for the counts.

    Args:
        num_observed: steps with a loss that is not NaN.
        first: the first one.
        last: the last one.
        median_last: median of the last `LAST_STEPS`.
        lowest: the lowest one.
    """

    num_observed: int
    first: float | None = None
    last: float | None = None
    median_last: float | None = None
    lowest: float | None = None


class Summary(Frozen):
    """What happened in a run.

    Args:
        path: the run directory.
        name: the guard's name, or None.
        status: see `Run.status`.
        created: UTC, ISO 8601.
        duration_sec: from the creation to the end, or to the last record when it did not end.
        mode: "enforce" or "observe", as the policy says.
        num_steps: recorded steps.
        first_step: the first recorded one; None when there is none.
        last_step: the last recorded one.
        num_applied: steps whose update reached the weights.
        num_skipped_by_guard: steps that the guard skipped.
        num_skipped_by_scaler: steps that GradScaler skipped, as the statistics saw them.
        num_stale: steps with gradients left over from the step before.
        loss: the losses.
        clip_share: share of the steps whose gradient was scaled down, in [0, 1]; None without steps.
        clip_median: median factor of these steps; None when there are none.
        severities: number of findings by severity.
        num_steps_found: steps at which anything was found.
        ending: how it ended: was it cured.
        matters: what was found at severity "warn" or above, by diagnosis.
        responses: what the guard did, by what was found and done; what was done about one thing at one step is one.
        lasting: what the guard changed and has not put back when the record ends.
        last_good: a sentence about the state that was kept when the policy stopped the run; "" when there is none.
        story: what was found, each diagnosis where it first came, in order.
        interventions: each remedy for itself, in order of the first step.
        outcomes: number of responses by verdict, judged ones only.
        efficacy: what each remedy was worth against each diagnosis.
        withheld: in order of their first step.
        events: number of events by name.
        internal_errors: messages of the guard's own faults, each once.
        is_torn: the last record was cut off by the end of the process.
        problems: what could not be read.
    """

    path: str
    name: str | None
    status: str
    created: str
    duration_sec: float | None
    mode: str
    num_steps: int
    first_step: int | None
    last_step: int | None
    num_applied: int
    num_skipped_by_guard: int
    num_skipped_by_scaler: int
    num_stale: int
    loss: Losses
    clip_share: float | None
    clip_median: float | None
    severities: dict[str, int]
    num_steps_found: int
    ending: Ending
    matters: tuple[Matter, ...]
    responses: tuple[ResponseGroup, ...]
    lasting: tuple[str, ...]
    last_good: str
    story: tuple[Chapter, ...]
    interventions: tuple[ActionGroup, ...]
    outcomes: dict[str, int]
    efficacy: tuple[Efficacy, ...]
    withheld: tuple[ActionGroup, ...]
    events: dict[str, int]
    internal_errors: tuple[str, ...]
    is_torn: bool
    problems: tuple[Problem, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def headline(self) -> str:
        """One or two sentences: is the run healthy, what happened, did it help."""
        return headline(self)


def summarise(run: Run) -> Summary:
    """Return what happened in a run; the same run always gives the same summary."""
    columns = run.statistics
    steps, flags, coef = columns["step"], columns["flags"], columns["clip_coef"]
    by_guard = (flags & Flag.SKIPPED_BY_GUARD) != 0
    by_scaler = (flags & Flag.SKIPPED_BY_SCALER) != 0
    is_clipped = coef < 1
    severities = Counter(finding.severity for finding in run.findings)
    events = responses(run.interventions)
    verdicts = Counter(event.verdict for event in events if event.verdict is not None)
    errors = dict.fromkeys(event.message for event in run.events if event.event == "internal_error")
    return Summary(
        path=str(run.path),
        name=run.name,
        status=run.status,
        created=str(run.info.get("created", "")),
        duration_sec=_duration(run),
        mode=str(run.policy.get("mode", "enforce")),
        num_steps=len(steps),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        num_applied=int(np.count_nonzero(~by_guard & ~by_scaler)),
        num_skipped_by_guard=int(np.count_nonzero(by_guard)),
        num_skipped_by_scaler=int(np.count_nonzero(by_scaler & ~by_guard)),
        num_stale=int(np.count_nonzero(flags & Flag.STALE)),
        loss=_losses(columns["loss"]),
        clip_share=float(np.mean(is_clipped)) if len(steps) else None,
        clip_median=float(np.median(coef[is_clipped])) if is_clipped.any() else None,
        severities={name: severities[name] for name in SEVERITIES if severities[name]},
        num_steps_found=len({finding.step for finding in run.findings}),
        ending=ending(columns, events, run.status),
        matters=matters(run.findings, columns),
        responses=groups(events),
        lasting=lasting(run.interventions, int(steps[-1]) if len(steps) else None, _last_factor(columns["lr_factor"])),
        last_good=next((event.message for event in reversed(run.events) if event.event == "state_kept"), ""),
        story=chapters(run.findings),
        interventions=_group(run.interventions),
        outcomes=dict(sorted(verdicts.items())),
        efficacy=run.efficacy,
        withheld=_group(run.withheld),
        events=dict(sorted(Counter(event.event for event in run.events).items())),
        internal_errors=tuple(errors),
        is_torn=run.is_torn,
        problems=tuple(run.problems_of_steps),
    )


def chapters(findings: Sequence[Finding]) -> tuple[Chapter, ...]:
    """Return the first finding of each diagnosis; of one step, what another follows from comes before it."""
    first: dict[str, Finding] = {}
    for finding in findings:
        if finding.severity != "info":
            first.setdefault(finding.diagnosis, finding)
    causes = {name: finding.follows.diagnosis if finding.follows else "" for name, finding in first.items()}

    def links(name: str) -> int:
        count = 0
        while name in causes and count < len(causes):
            name, count = causes[name], count + 1
        return count

    order = sorted(first, key=lambda name: (first[name].step, links(name)))
    return tuple(Chapter(step=first[name].step, diagnosis=name, follows=causes[name]) for name in order)


def _last_factor(factors: np.ndarray) -> float:
    return float(factors[-1]) if len(factors) else 1.0


def _losses(loss: np.ndarray) -> Losses:
    finite = loss[np.isfinite(loss)]
    num_observed = int(np.count_nonzero(~np.isnan(loss)))
    if not len(finite):
        return Losses(num_observed=num_observed)
    return Losses(
        num_observed=num_observed,
        first=float(finite[0]),
        last=float(finite[-1]),
        median_last=float(np.median(finite[-LAST_STEPS:])),
        lowest=float(finite.min()),
    )


def _group(records: Sequence[Intervention] | Sequence[Withheld]) -> tuple[ActionGroup, ...]:
    members: dict[tuple[str, str, str], list[Intervention | Withheld]] = {}
    for record in records:
        reason = record.reason if isinstance(record, Withheld) else ""
        members.setdefault((record.diagnosis, record.remedy, reason), []).append(record)
    return tuple(
        ActionGroup(
            diagnosis=diagnosis,
            remedy=remedy,
            reason=reason,
            count=len(group),
            first_step=group[0].step,
            last_step=group[-1].step,
            worst_parameter=_worst_parameter(record.finding for record in group),
            outcomes=dict(
                sorted(
                    Counter(
                        record.outcome.verdict
                        for record in group
                        if isinstance(record, Intervention) and record.outcome is not None
                    ).items()
                )
            ),
        )
        for (diagnosis, remedy, reason), group in members.items()
    )


def _worst_parameter(findings: Iterable[Finding | None]) -> str:
    worst = Counter(finding.parameters[0] for finding in findings if finding is not None and finding.parameters)
    return worst.most_common(1)[0][0] if worst else ""


def _duration(run: Run) -> float | None:
    try:
        start = datetime.fromisoformat(run.info["created"])
        end = datetime.fromisoformat(run.info.get("ended") or run.records[-1].time)
        return (end - start).total_seconds()
    except (KeyError, TypeError, ValueError, IndexError):
        return None
