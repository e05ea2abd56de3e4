"""Bring the gradient norm down to a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from gradguard.contracts import REMEDIES, Remedy
from gradguard.norm_limit import NormLimit, has_baseline, limit_windows, resolve_limit
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.stats import StepStats
    from gradguard.target import Target


@REMEDIES.register
class ClipNorm(Remedy):
    """Scale gradients down so that their L2 norm is at most a limit; smaller ones are left alone.

    Args:
        max_norm: a number > 0, or {median_times: x}: x times the rolling median of the same norm.
        scope: "global" clips all gradients together by one factor, "per_parameter" each by its own norm, "auto" clips
            what the finding named: the global norm, or just the parameters that stood out.

    The factor is min(1, max_norm / (norm + 1e-6)), that of `torch.nn.utils.clip_grad_norm_`. A non-finite norm is never
    clipped: the factor would spread it to every parameter.
    """

    name = "clip_norm"
    kind = "gradient"
    rank = 40
    is_routine = True
    what = "The gradient keeps its direction and is shortened to a limit."
    computed = "grad *= min(1, max_norm / (norm + 1e-6)), with the norm that was measured for this step."
    source = "Pascanu et al. 2013; torch.nn.utils.clip_grad_norm_"

    max_norm: NormLimit
    scope: Literal["auto", "global", "per_parameter"] = "auto"

    def windows(self) -> Sequence[int]:
        """Return the window sizes that the limit reads."""
        return limit_windows(self.max_norm)

    def device_limit(self, stats: StepStats, has_baseline: bool) -> float | None:
        """See `Remedy.device_limit`."""
        return None if self.scope == "per_parameter" else resolve_limit(self.max_norm, stats, 0, has_baseline)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """See `Remedy.apply`; with a finding about parameters only these are clipped."""
        stats = target.stats
        if self.scope == "per_parameter" or (self.scope == "auto" and finding is not None and finding.indices):
            return self._clip_each(target, stats, finding, target.rows(rows))
        return self._clip_together(target, stats, finding, target.rows(rows), is_everything=rows is None)

    def _clip_together(
        self, target: Target, stats: StepStats, finding: Finding | None, rows: list[int], is_everything: bool
    ) -> Change | None:
        from gradguard import functional

        norm = stats.global_norm if is_everything else math.hypot(*[stats.norm(row) for row in rows])
        limit = resolve_limit(self.max_norm, stats, 0, has_baseline(finding))
        factor = functional.clip_coefficient(norm, limit)
        if not factor < 1.0 or not math.isfinite(norm):
            return None
        if is_everything:
            target.scale_all(factor)
        else:
            target.scale(dict.fromkeys(rows, factor))
        return Change(
            summary=f"gradient norm {norm:.3g} -> {norm * factor:.3g}",
            before={"norm": norm},
            after={"norm": norm * factor, "factor": factor, "max_norm": limit},
        )

    def _clip_each(self, target: Target, stats: StepStats, finding: Finding | None, rows: list[int]) -> Change | None:
        from gradguard import functional

        factors: dict[int, float] = {}
        before = after = 0.0
        for row in rows:
            norm = stats.norm(row)
            factor = functional.clip_coefficient(
                norm, resolve_limit(self.max_norm, stats, row + 1, has_baseline(finding))
            )
            if not factor < 1.0 or not math.isfinite(norm):
                continue
            if factor < min(factors.values(), default=1.0):
                before, after = norm, norm * factor
            factors[row] = factor
        if not factors:
            return None
        target.scale(factors)
        return Change(
            summary=f"{len(factors)} parameters clipped, the furthest from norm {before:.3g} to {after:.3g}",
            before={"norm": before},
            after={"norm": after, "factor": min(factors.values()), "parameters": len(factors)},
        )
