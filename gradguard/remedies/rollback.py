"""Go back to the last state that was verified to be good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class Rollback(Remedy):
    """Restore parameters, buffers and optimizer state from the last verified-finite snapshot; the data goes on.

    The step is dropped as well, and the guard's rolling statistics go back to those of the snapshot. What was handed to
    `attach(also=...)` goes back too; without a scheduler among it learning rates stay with their schedule. A rollback
    that comes before another state was verified to be good goes one snapshot further back, if `snapshots.keep` has one.
    """

    name = "rollback"
    kind = "verdict"
    rank = 20
    timing = "late"
    needs = frozenset({"buffers", "snapshots"})
    what = "The model returns to a state from before the fault, and the batches since are not seen again."
    computed = "Every tensor is copied back bit for bit; state that did not exist at the snapshot is removed."
    source = "PaLM (Chowdhery et al. 2022, section 5.1): restart before the spike and skip the batches"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`.

        Raises:
            Unavailable: there is no snapshot.
        """
        snapshots = target.snapshots
        snapshot = target.go_back(snapshots.restore) if snapshots is not None else None
        if snapshots is None or snapshot is None:
            reason = snapshots.refusal if snapshots is not None else "the policy keeps no snapshots"
            raise Unavailable(f"there is no snapshot to roll back to: {reason or 'none was taken yet'}")
        step = target.stats.step
        failed = f"; {snapshots.companions.not_restored}" if snapshots.companions.not_restored else ""
        return Change(
            summary=f"rolled back {step - snapshot.step} steps, to the state before step {snapshot.step}{failed}",
            before={"step": step},
            after={"step": snapshot.step, "steps_lost": step - snapshot.step},
        )
