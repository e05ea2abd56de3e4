"""What each remedy was worth against each diagnosis, over a whole run; and what passed when nothing was done."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from gradguard.audit.responses import ENDS, TELLS, responses
from gradguard.outcomes.verdict import Level, judge, outcome
from gradguard.record.statistics import Flag
from gradguard.records import Finding, Frozen, Outcome, Verdict


if TYPE_CHECKING:
    from gradguard.audit.read import Run

LEFT_ALONE = ("dry_run", "cooldown", "budget", "unavailable", "failed")  # reasons for which a finding has no remedy
HORIZON = 50  # steps, where a record does not say
MAX_HORIZON = 2**31


class Efficacy(Frozen):
    """What was done together against one diagnosis.

    Args:
        diagnosis: what was found.
        remedy: what was done, "rollback + scale_lr" when it was done together; "" for findings that were left alone,
            which tell what passes by itself.
        count: how often.
        helped: how many were judged so; likewise the next three.
        no_effect: see `judge`.
        worse: see `judge`.
        unknown: nothing to judge by, or the run ended before.
        waiting: not judged yet.
        loss_change: median of (loss after - loss before) / |loss before|; None when no loss was observed.
        steps_to_recover: median number of steps until the loss was back where its usual noise has it, without the same
            coming back before the judgement; of those that recovered, None when none did.
    """

    diagnosis: str
    remedy: str
    count: int
    helped: int = 0
    no_effect: int = 0
    worse: int = 0
    unknown: int = 0
    waiting: int = 0
    loss_change: float | None = None
    steps_to_recover: float | None = None


def efficacy(run: Run) -> tuple[Efficacy, ...]:
    """Return one row for each diagnosis and remedy, in the order in which they first came, what was left alone last.

    Remedies that only tell or end the run have no row.
    """
    losses = _Losses(run)
    done: dict[tuple[str, str], list[Outcome | None]] = {}
    for event in responses(record for record in run.interventions if record.finding is not None):
        remedies = " + ".join(name for name in event.remedies if name not in (TELLS, ENDS))
        if remedies:
            done.setdefault((event.diagnosis, remedies), []).append(event.outcome)
    left: dict[tuple[str, str], list[Outcome | None]] = {}
    for finding in _left_alone(run):
        left.setdefault((finding.diagnosis, ""), []).append(losses.judge(finding))
    order = list(dict.fromkeys(diagnosis for diagnosis, _ in (*done, *left)))
    rows = [_row(key, outcomes, losses) for key, outcomes in (*done.items(), *left.items())]
    return tuple(sorted(rows, key=lambda row: order.index(row.diagnosis)))


def _left_alone(run: Run) -> list[Finding]:
    """Return the findings that a rule would have acted on, of steps at which nothing was done about that diagnosis."""
    acted = {(record.step, record.diagnosis) for record in run.interventions if record.remedy != TELLS}
    found = {
        (record.step, record.diagnosis): record.finding
        for record in run.withheld
        if record.finding is not None and record.reason in LEFT_ALONE and record.remedy != TELLS
    }
    return [finding for key, finding in found.items() if key not in acted]


def _row(key: tuple[str, str], outcomes: Sequence[Outcome | None], losses: _Losses) -> Efficacy:
    judged = [one for one in outcomes if one is not None]
    counts: dict[Verdict, int] = {"helped": 0, "no_effect": 0, "worse": 0, "unknown": 0}
    for one in judged:
        counts[one.verdict] += 1
    changes = [
        (one.loss_after - one.loss_before) / abs(one.loss_before)
        for one in judged
        if one.loss_after is not None and one.loss_before
    ]
    recovered = [steps for one in judged if (steps := losses.steps_to_recover(one)) is not None]
    return Efficacy(
        diagnosis=key[0],
        remedy=key[1],
        count=len(outcomes),
        helped=counts["helped"],
        no_effect=counts["no_effect"],
        worse=counts["worse"],
        unknown=counts["unknown"],
        waiting=len(outcomes) - len(judged),
        loss_change=median(changes) if changes else None,
        steps_to_recover=median(recovered) if recovered else None,
    )


class _Losses:
    """The losses of a run's applied steps; of a step that was taken twice (after a resume) the last time."""

    def __init__(self, run: Run) -> None:
        columns = run.statistics
        skipped = (columns["flags"] & (Flag.SKIPPED_BY_GUARD | Flag.SKIPPED_BY_SCALER)) != 0
        loss = np.where(skipped, np.nan, columns["loss"])
        self.steps, from_end = np.unique(columns["step"][::-1], return_index=True)
        self.loss = loss[::-1][from_end]
        horizon = run.policy.get("horizon")
        self.horizon = horizon if isinstance(horizon, int) and 0 < horizon < MAX_HORIZON else HORIZON
        self.found: dict[str, list[int]] = {}
        for finding in run.findings:
            insort(self.found.setdefault(finding.diagnosis, []), finding.step)

    def between(self, first: int, end: int) -> list[float]:
        """Return the finite losses of the steps from `first` to before `end`."""
        low, high = np.searchsorted(self.steps, [first, end])
        part = self.loss[low:high]
        return [float(loss) for loss in part[np.isfinite(part)]]

    def steps_to_recover(self, judged: Outcome) -> int | None:
        """Return after how many steps the loss was back, None when it was not or that is not known."""
        if judged.verdict != "helped" or judged.loss_before is None or judged.loss_noise is None:
            return None
        done_at = judged.step - judged.horizon
        start = (judged.last_seen if judged.last_seen is not None else done_at) + 1
        low, high = np.searchsorted(self.steps, [start, judged.step])
        back = np.flatnonzero(self.loss[low:high] <= judged.loss_before + judged.loss_noise)
        return int(self.steps[low + back[0]]) - done_at if len(back) else None

    def judge(self, finding: Finding) -> Outcome | None:
        """Return what became of a finding by itself; None when the run ended before that could be told."""
        step, end = finding.step, finding.step + self.horizon
        if not len(self.steps) or self.steps[-1] < end:
            return None
        found = self.found[finding.diagnosis]
        again = found[bisect_right(found, step) : bisect_right(found, end)]
        before = Level.of(self.between(step - self.horizon, step))
        after = Level.of(self.between(step + 1, end + 1))
        judged = judge(before, after, len(again), self.horizon)
        return outcome(-1, end, self.horizon, (before, after), judged, len(again), again[-1] if again else None)
