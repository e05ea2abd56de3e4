"""Clamp every gradient entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class ClipValue(Remedy):
    """Clamp gradient entries to [-max_value, max_value]; real and imaginary parts of complex ones separately.

    Args:
        max_value: limit, > 0, in the unit of the gradient.
    """

    name = "clip_value"
    kind = "gradient"
    rank = 30
    is_routine = True
    what = "Entries beyond the limit are cut to it, which also changes the gradient's direction."
    computed = "grad = clamp(grad, -max_value, max_value)"
    source = "torch.nn.utils.clip_grad_value_"

    max_value: float = Field(gt=0)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """See `Remedy.apply`."""
        from gradguard import functional

        limit = self.max_value * target.gradient_scale
        members = target.rows(rows)
        before = target.stats.global_norm
        for values in map(functional.writable_values, target.grads(members)):
            values.clamp_(-limit, limit)
        target.measure_again(members)
        after = target.stats.global_norm
        if after == before:
            return None
        return Change(
            summary=f"entries clamped to {self.max_value:g}, gradient norm {short(before)} -> {short(after)}",
            before={"global_norm": before},
            after={"global_norm": after, "max_value": self.max_value},
        )
