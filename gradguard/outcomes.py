"""Did it help? Every intervention is judged some steps later, from the losses and from what came back."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from gradguard.records import Outcome, Verdict


BETTER = 1.25  # loss after / before up to which the run counts as being where it was: medians of 50 steps are noisy
WORSE = 1.5  # loss after / before from which it counts as worse


@dataclass
class Pending:
    """An intervention that waits for its judgement.

    Args:
        seq: of the intervention's record.
        step: at which it was carried out.
        diagnosis: that fired it.
        due: step at which it is judged.
        loss_before: median loss of the window before it, NaN when no loss was observed.
        recurrences: findings of the same diagnosis since.
    """

    seq: int
    step: int
    diagnosis: str
    due: int
    loss_before: float
    recurrences: int = 0


def judge(loss_before: float, loss_after: float, recurrences: int, horizon: int) -> tuple[Verdict, str]:
    """Return the verdict on an intervention, and one sentence.

    Args:
        loss_before: median loss before the intervention, NaN when unknown.
        loss_after: median loss since, NaN when unknown.
        recurrences: findings of the same diagnosis since.
        horizon: steps since.

    Example:
        >>> judge(1.0, 0.9, 0, 50)
        ('helped', 'it did not come back in 50 steps and the loss is 0.9 (before 1)')
        >>> judge(1.0, 3.0, 0, 50)[0]
        'worse'
    """
    came_back = (
        f"it came back {recurrences} times in {horizon} steps"
        if recurrences
        else (f"it did not come back in {horizon} steps")
    )
    if not (math.isfinite(loss_before) and math.isfinite(loss_after)):
        if recurrences:
            return "no_effect", came_back
        return "unknown", f"{came_back}; no loss was observed to compare"
    rise = loss_after - loss_before
    told = f"{came_back} and the loss is {loss_after:.4g} (before {loss_before:.4g})"
    if rise > (WORSE - 1.0) * abs(loss_before):
        return "worse", told
    if recurrences == 0 and rise <= (BETTER - 1.0) * abs(loss_before):
        return "helped", told
    return "no_effect", told


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

    def add(self, seq: int, step: int, diagnosis: str, loss_before: float) -> None:
        """Wait for the judgement of an intervention."""
        self.pending.append(Pending(seq, step, diagnosis, step + self.horizon, loss_before))

    def saw(self, diagnosis: str, step: int) -> None:
        """Count a finding as a recurrence for what waits on the same diagnosis."""
        for entry in self.pending:
            if entry.diagnosis == diagnosis and entry.step < step:
                entry.recurrences += 1

    def collect(self, step: int, loss_after: float) -> list[Outcome]:
        """Return the judgements that are due at a step."""
        records = []
        while self.pending and self.pending[0].due <= step:
            entry = self.pending.pop(0)
            verdict, reason = judge(entry.loss_before, loss_after, entry.recurrences, self.horizon)
            records.append(self._record(entry, step, verdict, reason, loss_after))
        return records

    def give_up(self, step: int, loss_after: float) -> list[Outcome]:
        """Return "unknown" for everything that still waits: the run ends before the horizon."""
        pending, self.pending = self.pending, []
        reason = "the run ended before it could be judged"
        return [self._record(entry, step, "unknown", reason, loss_after) for entry in pending]

    def _record(self, entry: Pending, step: int, verdict: Verdict, reason: str, loss_after: float) -> Outcome:
        return Outcome(
            step=step,
            of=entry.seq,
            verdict=verdict,
            recurrences=entry.recurrences,
            loss_before=entry.loss_before if math.isfinite(entry.loss_before) else None,
            loss_after=loss_after if math.isfinite(loss_after) else None,
            horizon=step - entry.step,
            reason=reason,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what waits."""
        return {"pending": [asdict(entry) for entry in self.pending]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on waiting for what a saved state waited for."""
        self.pending = [Pending(**entry) for entry in state["pending"]]
