"""Accept the present level as normal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradguard.contracts import REMEDIES, Remedy
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class Rebaseline(Remedy):
    """Forget the rolling statistics, so that the present level of loss and gradients becomes the new normal.

    The last rung for spikes that come back on fresh data from a state that was verified to be good: then it is the
    level that changed (new data, a new phase), not the model that broke. The rollback that showed it is then undone.
    """

    name = "rebaseline"
    kind = "notice"
    rank = 0
    timing = "late"
    what = "The guard stops comparing with the past and learns the level of loss and gradients afresh."
    computed = "All rolling windows are emptied; the diagnoses that need them are not armed until they fill again."
    source = "own: the release that rolling detectors without one lack (ZClip clips for ever after a level doubles)"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`."""
        target.is_rebaselined = True
        snapshots = target.snapshots
        aside = snapshots.take_aside(target.stats.step) if snapshots is not None else None
        summary = "rolling statistics start afresh"
        if snapshots is not None and aside is not None:
            target.drop_step()
            snapshots.put_back(aside)
            if target.buffers is not None:
                target.buffers.accept()
            summary += f", and the rollback is undone: back to the state of step {aside.step}"
        windows = target.stats.windows
        known = max((window.steps for window in windows.values()), default=0)
        return Change(summary=summary, before={"window_steps": known}, after={"window_steps": 0})
