"""What `guard.last` says about the step that was just taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gradguard.records import AnyRecord, Finding, Intervention, Outcome, Withheld


if TYPE_CHECKING:
    from gradguard.evidence.stats import StepStats
    from gradguard.flow.target import Target


@dataclass(frozen=True)
class StepReport:
    """One step, as the guard saw it.

    Args:
        step: optimizer step, 0-based; -1 before the first.
        skipped: the step was not applied.
        skipped_by: "guard", "scaler", or None when it was applied.
        global_norm: L2 norm of all gradients as measured, before any remedy.
        lr_factor: the guard's factor on the learning rate.
        clip_coef: what the gradients as a whole were multiplied by.
        findings: what was found wrong.
        records: actions and non-actions, in order.
        outcomes: of earlier interventions, judged once this step was taken.
    """

    step: int
    skipped: bool
    skipped_by: Literal["guard", "scaler"] | None
    global_norm: float
    lr_factor: float
    clip_coef: float
    findings: tuple[Finding, ...]
    records: tuple[AnyRecord, ...]
    outcomes: tuple[Outcome, ...] = ()

    @classmethod
    def of(
        cls,
        step: int,
        stats: StepStats,
        target: Target,
        findings: Sequence[Finding],
        records: Sequence[AnyRecord],
        outcomes: Sequence[Outcome],
    ) -> StepReport:
        """Return the report on a step, from what was measured, what remedies left and what was judged since."""
        by_guard, by_scaler = target.is_skipped, stats.found_inf
        return cls(
            step=step,
            skipped=by_guard or by_scaler,
            skipped_by="guard" if by_guard else "scaler" if by_scaler else None,
            global_norm=stats.global_norm,
            lr_factor=target.lr_factor,
            clip_coef=target.clip_coef,
            findings=tuple(findings),
            records=tuple(records),
            outcomes=tuple(outcomes),
        )

    @classmethod
    def of_scaler_skip(cls, step: int) -> StepReport:
        """Return the report on a step that GradScaler did not even call."""
        return cls(step, True, "scaler", math.nan, 1.0, 1.0, (), ())

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """The actions that were carried out."""
        return tuple(record for record in self.records if isinstance(record, Intervention))

    @property
    def withheld(self) -> tuple[Withheld, ...]:
        """The actions that were due and not carried out, with their reasons."""
        return tuple(record for record in self.records if isinstance(record, Withheld))
