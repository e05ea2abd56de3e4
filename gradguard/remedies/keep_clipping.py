"""Clip every gradient for a while: the short leash after a rollback."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy
from gradguard.limits.norm_limit import LevelLimit, has_baseline, limit_windows, resolve_limit
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


class HeldLimit:
    """A limit on the global gradient norm that holds until a step.

    Args:
        max_norm: limit.
        until: step from which it no longer holds.
    """

    remedy = "keep_clipping"

    def __init__(self, max_norm: float, until: int) -> None:
        self.max_norm = max_norm
        self.until = until

    def before_step(self, target: Target, step: int) -> None:
        """Leave the optimizer alone."""

    def on_gradients(self, target: Target, step: int) -> None:
        """Clip the gradients together."""
        from gradguard import functional

        norm = target.stats.global_norm
        factor = functional.clip_coefficient(norm, self.max_norm)
        if factor < 1.0 and math.isfinite(norm):
            target.scale_all(factor)

    def take_off(self, target: Target) -> None:
        """Leave the optimizer alone."""

    def goes_on(self, step: int) -> bool:
        """Return whether the limit still holds."""
        return step < self.until

    def state_dict(self) -> dict[str, Any]:
        """Return the limit and how long it holds."""
        return {"max_norm": self.max_norm, "until": self.until}


@REMEDIES.register
class KeepClipping(Remedy):
    """From this step on clip the global gradient norm for some steps.

    Args:
        max_norm: limit on the L2 norm, > 0; {median_times: x} and {percentile: p} are resolved when it is applied.
        steps: for so many steps, >= 1.
    """

    name = "keep_clipping"
    kind = "optimizer"
    rank = 20
    timing = "late"
    what = "Every gradient is kept short for a while, so that the steps after a rollback cannot run away again."
    computed = (
        "grad *= min(1, max_norm / (norm + 1e-6)) at each of the steps; counted in the step statistics (clip_coef)."
    )
    source = "OPT-175B and GLM-130B training logs: harder clipping after a restart"

    max_norm: LevelLimit
    steps: int = Field(default=500, ge=1)

    def windows(self) -> Sequence[int]:
        """Return the window sizes that the limit reads."""
        return limit_windows(self.max_norm)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`; the limit is on the gradients as a whole."""
        limit = resolve_limit(self.max_norm, target.stats, 0, has_baseline(finding))
        until = target.stats.step + self.steps
        known = target.effects.get(self.name)
        before = known.max_norm if isinstance(known, HeldLimit) else math.inf
        until = max(until, known.until) if isinstance(known, HeldLimit) else until
        target.effects[self.name] = HeldLimit(min(limit, before), until)
        return Change(
            summary=f"gradient norm kept below {short(min(limit, before))} for {self.steps} steps",
            before={"max_norm": before},
            after={"max_norm": min(limit, before), "until_step": until},
        )

    @classmethod
    def restore_effect(cls, state: dict[str, Any]) -> HeldLimit:
        """Return the effect that a saved state describes."""
        return HeldLimit(float(state["max_norm"]), int(state["until"]))
