"""Tell someone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradguard.contracts import REMEDIES, Remedy
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class Notify(Remedy):
    """Record the finding, tell it on the console, and call the function that was given to `attach(notify=...)`."""

    name = "notify"
    kind = "notice"
    rank = 10
    timing = "late"
    what = "Nothing is changed; the finding is recorded and told."
    computed = "notify(finding) is called once per finding; what it raises is recorded and does not reach the training."
    source = "own"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`."""
        if target.notify is None or finding is None:
            return Change(summary="nothing was changed")
        target.notify(finding)
        return Change(summary="nothing was changed, your notify function was called")
