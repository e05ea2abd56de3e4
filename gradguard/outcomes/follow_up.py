"""Did it help? Every intervention is judged some steps later, from the losses and from what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gradguard.outcomes.main_remedy import WORDS
from gradguard.outcomes.verdict import Level, judge, outcome
from gradguard.records import Finding, Intervention, Outcome, Verdict


@dataclass
class Pending:
    """An intervention that waits for its judgement.

    Args:
        seq: of the intervention's record.
        step: at which it was carried out.
        rule: that acted.
        rung: on which.
        remedy: that was applied.
        diagnosis: that fired it.
        due: step at which it is judged.
        before: the loss before it.
        num_losses: losses observed in the whole run before it.
        recurrences: findings of the same diagnosis since.
        last_seen: step of the last of these, None while there is none.
    """

    seq: int
    step: int
    rule: str
    rung: int
    remedy: str
    diagnosis: str
    due: int
    before: Level
    num_losses: int
    recurrences: int = 0
    last_seen: int | None = None


class Judged(NamedTuple):
    """A judgement, and what it is about."""

    entry: Pending
    record: Outcome


class Outcomes:
    """The interventions that wait for their judgement.

    Args:
        horizon: steps after which one is judged.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.pending: list[Pending] = []

    @property
    def next_due(self) -> int:
        """Step at which the first judgement is due; far away when none is."""
        return self.pending[0].due if self.pending else 2**62

    def add(self, done: Intervention, losses: Sequence[float], num_losses: int) -> None:
        """Wait for the judgement of an intervention.

        Args:
            done: the intervention, as recorded.
            losses: accepted ones before it, the last `horizon` at most.
            num_losses: accepted ones in the whole run.
        """
        self.pending.append(
            Pending(
                seq=done.seq,
                step=done.step,
                rule=done.rule,
                rung=done.rung,
                remedy=done.remedy,
                diagnosis=done.diagnosis,
                due=done.step + self.horizon,
                before=Level.of(losses),
                num_losses=num_losses,
            )
        )

    def saw(self, diagnosis: str, step: int) -> None:
        """Count a finding as a recurrence for what waits on the same diagnosis."""
        for entry in self.pending:
            if entry.diagnosis == diagnosis and entry.step < step:
                entry.recurrences += 1
                entry.last_seen = step

    def collect(self, step: int, losses: Sequence[float], num_losses: int) -> list[Judged]:
        """Return the judgements that are due at a step.

        Args:
            step: optimizer steps so far.
            losses: the last accepted ones, `horizon` at most, oldest first.
            num_losses: accepted ones in the whole run.
        """
        judged = []
        while self.pending and self.pending[0].due <= step:
            entry = self.pending.pop(0)
            after = _level_since(entry, losses, num_losses)
            verdict, reason = judge(entry.before, after, entry.recurrences, self.horizon)
            judged.append(_judged(entry, step, verdict, reason, after))
        return judged

    def climbed(self, higher: Intervention, losses: Sequence[float], num_losses: int) -> list[Judged]:
        """Return the judgements of what a rule had done on lower rungs and what waits: it was not enough.

        Args:
            higher: what the rule had to do now.
            losses: see `collect`.
            num_losses: see `collect`.
        """
        lower = [
            entry
            for entry in self.pending
            if entry.rule == higher.rule and entry.rung < higher.rung and entry.step < higher.step
        ]
        self.pending = [entry for entry in self.pending if entry not in lower]
        reason = f"it took {WORDS.get(higher.remedy, higher.remedy)} at step {higher.step}"
        return [
            _judged(entry, higher.step, "no_effect", reason, _level_since(entry, losses, num_losses)) for entry in lower
        ]

    def give_up(
        self, step: int, losses: Sequence[float], num_losses: int, stopped_by: Finding | None = None
    ) -> list[Judged]:
        """Return the judgements of everything that still waits: the run ends before the horizon.

        They are "unknown", but for what was to keep off the diagnosis that the run was stopped for: that had no effect.

        Args:
            step: optimizer steps so far.
            losses: see `collect`.
            num_losses: see `collect`.
            stopped_by: what the policy stopped the run for, None when it did not.
        """
        pending, self.pending = self.pending, []
        judged = []
        for entry in pending:
            verdict: Verdict = "unknown"
            reason = "the run ended before it could be judged"
            if stopped_by is not None and entry.diagnosis == stopped_by.diagnosis and entry.step < stopped_by.step:
                verdict = "no_effect"
                reason = f"the run was stopped for the same, {_steps(stopped_by.step - entry.step)} later"
            judged.append(_judged(entry, step, verdict, reason, _level_since(entry, losses, num_losses)))
        return judged

    def state_dict(self) -> dict[str, Any]:
        """Return what waits."""
        return {"pending": [asdict(entry) for entry in self.pending]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on waiting for what a saved state waited for."""
        self.pending = [Pending(**{**entry, "before": Level(**entry["before"])}) for entry in state["pending"]]


def _steps(count: int) -> str:
    return f"{count:,} step" if count == 1 else f"{count:,} steps"


def _level_since(entry: Pending, losses: Sequence[float], num_losses: int) -> Level:
    count = min(len(losses), num_losses - entry.num_losses)
    return Level.of(losses[len(losses) - count :] if count > 0 else ())


def _judged(entry: Pending, step: int, verdict: Verdict, reason: str, after: Level) -> Judged:
    levels = entry.before, after
    told = verdict, reason
    record = outcome(entry.seq, step, step - entry.step, levels, told, entry.recurrences, entry.last_seen)
    return Judged(entry, record)
