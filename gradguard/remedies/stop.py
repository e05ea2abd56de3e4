"""End the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradguard.contracts import REMEDIES, Remedy
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class Stop(Remedy):
    """Drop the step and raise `TrainingStopped` once everything is on disk."""

    name = "stop"
    kind = "verdict"
    rank = 40
    timing = "late"
    needs = frozenset({"buffers"})
    what = "Training ends with a clear error, before the bad update; the weights are those of the last accepted step."
    computed = "gradguard.TrainingStopped is raised from optimizer.step(), with the finding in it."
    source = "own"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`; the guard raises after the record is written."""
        target.drop_step()
        target.is_stopped = True
        target.stop_finding = finding
        summary, snapshots = "training stopped", target.snapshots
        if target.stats.bad_state and snapshots is not None:
            snapshot = snapshots.restore(target.stats.step, is_deeper=False)
            if snapshot is not None:
                summary += f", with the weights of step {snapshot.step}, the last that were good"
        return Change(summary=summary, before={"step": target.stats.step})
