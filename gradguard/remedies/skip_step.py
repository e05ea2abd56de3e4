"""Drop this step so that it leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class SkipStep(Remedy):
    """The step leaves no trace: parameters, optimizer state and its counters, buffers. Gradients are dropped.

    Every gradient is set to None, so that torch's step has nothing to do: zeroed gradients would still let momentum and
    weight decay move the weights. Buffers (BatchNorm's running statistics) go back to what the last accepted step left.
    """

    name = "skip_step"
    kind = "verdict"
    rank = 10
    timing = "skip"
    needs = frozenset({"buffers"})
    what = "The step is not taken: it is as if this batch had never come."
    computed = "Gradients become None; buffers are restored from the copy kept since the last accepted step."
    source = "torch skips parameters without a gradient, for every optimizer in torch.optim; own oracle test"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`; `rows` is not used, a step is skipped as a whole."""
        if target.is_past and not target.was_skipped:
            raise Unavailable("the step was taken before the host knew")
        restored = target.drop_step()
        return Change(
            summary="step skipped" + (f", {restored} buffers restored" if restored else ""),
            before={"global_norm": target.stats.global_norm},
            after={"buffers_restored": restored},
        )
