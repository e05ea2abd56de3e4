"""Multiply the gradients of selected parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.target import Target


@REMEDIES.register
class Rescale(Remedy):
    """Multiply gradients by one factor.

    Args:
        factor: >= 0; below 1 damps, 0 leaves momentum and weight decay at work.
    """

    name = "rescale"
    kind = "gradient"
    rank = 20
    is_routine = True
    what = "The gradients of the rule's parameters are scaled by a fixed factor."
    computed = "grad *= factor. With Adam a constant factor has little effect; a factor for a few steps has."
    source = "GLM-130B's embedding gradient shrink (Zeng et al. 2022)"

    factor: float = Field(ge=0)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """See `Remedy.apply`."""
        members = target.rows(rows)
        if not members or self.factor == 1.0:
            return None
        before = target.stats.global_norm
        if rows is None:
            target.scale_all(self.factor)
        else:
            target.scale(dict.fromkeys(members, self.factor))
        after = target.stats.global_norm
        return Change(
            summary=f"{len(members)} gradients times {self.factor:g}, global norm {before:.3g} -> {after:.3g}",
            before={"global_norm": before},
            after={"global_norm": after, "factor": self.factor, "parameters": len(members)},
        )
