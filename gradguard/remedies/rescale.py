"""Multiply the gradients of selected parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.limits.norm_limit import LevelLimit, has_baseline, known_limits, limit_windows
from gradguard.limits.norm_sets import Rows, set_norms
from gradguard.limits.tracked import LARGEST
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class Rescale(Remedy):
    """Multiply gradients by one factor, or bring them to a norm; give one of the two.

    Args:
        factor: >= 0; below 1 damps, 0 leaves momentum and weight decay at work.
        to_norm: norm that they get together, up or down: a number > 0, or {median_times: x} or {percentile: p} of what
            it was before. Gradients of zero, and such as are not finite, are left alone, and so is everything while
            fewer than 5 norms are known to go by.
    """

    name = "rescale"
    kind = "gradient"
    rank = 20
    is_routine = True
    what = "The gradients of the rule's parameters are scaled by a fixed factor, or to a norm."
    computed = (
        "grad *= factor, or grad *= to_norm / norm. With Adam a constant factor has little effect; a factor for a few "
        "steps has."
    )
    source = "GLM-130B's embedding gradient shrink (Zeng et al. 2022); normalised gradient descent for to_norm"

    factor: float | None = Field(default=None, ge=0)
    to_norm: LevelLimit | None = None

    @model_validator(mode="after")
    def _check_form(self) -> Rescale:
        if (self.factor is None) == (self.to_norm is None):
            raise ValueError("'rescale' needs either 'factor' or 'to_norm'")
        return self

    def windows(self) -> Sequence[int]:
        """Return the window sizes that `to_norm` reads."""
        return () if self.to_norm is None else limit_windows(self.to_norm)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """See `Remedy.apply`."""
        members = target.rows(rows)
        factor = self._factor(target, finding, None if rows is None else tuple(rows)) if members else 1.0
        if factor == 1.0:
            return None
        before = target.stats.global_norm
        if rows is None:
            target.scale_all(factor)
        else:
            target.scale(dict.fromkeys(members, factor))
        after = target.stats.global_norm
        return Change(
            summary=f"{len(members)} gradients times {short(factor)}, global norm {short(before)} -> {short(after)}",
            before={"global_norm": before},
            after={"global_norm": after, "factor": factor, "parameters": len(members)},
        )

    def _factor(self, target: Target, finding: Finding | None, rows: Rows) -> float:
        if self.to_norm is None:
            return 1.0 if self.factor is None else self.factor
        norms = set_norms(target.stats, [rows])
        goal = float(known_limits(self.to_norm, target.stats, [rows], norms)[0])
        norm = float(norms[0])
        if not (goal > 0.0 and has_baseline(finding)):
            if finding is None:
                return 1.0
            raise Unavailable("the run has not shown yet which norm is usual; give to_norm as a number")
        factor = goal / norm if 0.0 < norm < math.inf else 1.0
        return factor if factor < LARGEST else 1.0
