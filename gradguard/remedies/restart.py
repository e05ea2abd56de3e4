"""Go back to the very start, and on from there with the data that comes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class Restart(Remedy):
    """Restore the state at attach time: parameters, buffers, optimizer state, and what `attach(also=...)` was given.

    For a run that went wrong from the start. The data goes on, and the guard's rolling statistics start afresh. Name a
    learning-rate factor (`scale_lr`) or a leash (`keep_clipping`) in the same `do`, or the same happens again.

    Args:
        schedule: "restart" also puts back the learning-rate scheduler that was handed over; "continue" leaves it where
            it is. One that was not handed over goes on in any case.
    """

    name = "restart"
    kind = "verdict"
    rank = 30
    timing = "late"
    needs = frozenset({"buffers", "snapshots", "start"})
    what = "The run starts again from its first weights, on the data that comes next."
    computed = (
        "Every tensor of the first snapshot is copied back bit for bit; snapshots that came after it are dropped."
    )
    source = "OPT-175B training log (runs restarted with a lower learning rate)"

    schedule: Literal["restart", "continue"] = Field(default="restart")

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`.

        Raises:
            Unavailable: the state at the start was not saved.
        """
        snapshots = target.snapshots
        is_kept = self.schedule == "continue"
        snapshot = target.go_back(partial(snapshots.restart, keeps_schedule=is_kept)) if snapshots is not None else None
        if snapshots is None or snapshot is None:
            reason = snapshots.refusal if snapshots is not None else "the policy keeps no snapshots"
            raise Unavailable(f"there is no state to restart from: {reason or 'that of the start was not saved'}")
        step = target.stats.step
        is_restarted = snapshots.companions.has_schedule and not is_kept
        told = "restarts" if is_restarted else "goes on"
        failed = f"; {snapshots.companions.not_restored}" if snapshots.companions.not_restored else ""
        return Change(
            summary=f"restarted from the state before step {snapshot.step}; the learning-rate schedule {told}{failed}",
            before={"step": step},
            after={"step": snapshot.step, "steps_lost": step - snapshot.step, "schedule": told},
        )
