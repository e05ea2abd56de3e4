"""Clip each unit's gradient to a share of the unit's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from torch import Tensor

    from gradguard.flow.target import Target

SQUARABLE = 1e18  # norm up to which the squares of all entries fit float32
SHARDED = "units of parameters that are spread over ranks (DTensor) cannot be measured by one rank; use clip_norm"


@REMEDIES.register
class ClipAdaptive(Remedy):
    """Shorten the gradient of each unit (a row, a filter) that is large beside the unit's own weights.

    Args:
        factor: what share of the weights' norm the gradient's norm may be, > 0.
        eps: the norm that weights count as at least, > 0, so that weights of zero can be trained.

    Tensors of fewer than two dimensions are one unit. The authors leave the last layer out: `parameters` does that.
    """

    name = "clip_adaptive"
    kind = "gradient"
    rank = 35
    is_routine = True
    what = "Each unit's gradient is shortened to a share of the norm of the unit's weights; small ones are left alone."
    computed = (
        "Per row or filter u: limit = factor * max(norm(w_u), eps); grad_u *= min(1, limit / norm(grad_u)). A unit "
        "whose gradient is not finite is left as it is."
    )
    source = "AGC, Brock et al. 2021 (NFNets), equation 3"

    factor: float = Field(default=0.01, gt=0)
    eps: float = Field(default=1e-3, gt=0)

    def obstacle(self, params: Sequence[Tensor]) -> str:
        """See `Remedy.obstacle`."""
        from gradguard.gradients.sharded import is_sharded

        return SHARDED if any(is_sharded(param) for param in params) else ""

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """See `Remedy.apply`."""
        import torch

        from gradguard import functional

        members = target.rows(rows)
        params = [target.params[row] for row in members]
        if obstacle := self.obstacle(params):
            raise Unavailable(obstacle)
        if not members:
            return None
        before = target.stats.global_norm
        pairs = [self._clip(target, row, grad) for row, grad in zip(members, target.grads(members), strict=True)]
        norms = functional.grad_norms([left for left, _ in pairs]).astype(float).tolist()
        counts = torch.stack([count.to(pairs[0][1].device) for _, count in pairs]).tolist()
        clipped = {
            row: norm / target.gradient_scale for row, norm, count in zip(members, norms, counts, strict=True) if count
        }
        if not clipped:
            return None
        target.note({row: norm for row, norm in clipped.items() if row not in target.stats.nonfinite})
        num_units, after = sum(counts), target.stats.global_norm
        return Change(
            summary=(
                f"{num_units} units in {len(clipped)} parameters clipped, global norm {short(before)} -> {short(after)}"
            ),
            before={"global_norm": before},
            after={"global_norm": after, "units": num_units, "parameters": len(clipped)},
        )

    def _clip(self, target: Target, row: int, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Clip one parameter's gradient; see `adaptive_clip.clip_units_` for what comes back."""
        import torch

        from gradguard import functional
        from gradguard.limits.adaptive_clip import clip_units_

        weight, values = target.params[row].detach(), functional.writable_values(grad)
        is_vector = grad.ndim < 2
        if grad.layout == torch.sparse_coo:  # only the rows that have a gradient; all of it if its values are scalars
            weight = weight[tuple(grad._indices())]
            is_vector = values.ndim < 2
        if weight.is_complex():
            weight = torch.view_as_real(weight)
        is_huge = not target.stats.norm(row) * target.gradient_scale < SQUARABLE
        factor = self.factor * target.gradient_scale
        return clip_units_(weight, values, factor, self.eps, is_vector=is_vector, is_huge=is_huge)
