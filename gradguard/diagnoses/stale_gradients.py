"""Gradients that nobody reset between two optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.records import Finding


@dataclass
class StaleState:
    """`count` is the stale steps in a row; `is_alarmed` stays set until a step with fresh gradients."""

    count: int = 0
    is_alarmed: bool = False


@DIAGNOSES.register
class StaleGradients(Diagnosis[StaleState]):
    """Several steps in a row used gradients that still contained those of the step before.

    Args:
        steps: stale steps in a row from which it is reported, >= 1.
    """

    name = "stale_gradients"
    what = "The gradients of earlier steps are still in .grad: every step repeats all the steps before it."
    computed = (
        "A gradient tensor's version number after the first backward since the last step tells whether it was zeroed "
        "or replaced in between. Accumulating several backwards into one step is not stale."
    )
    cure = "Call optimizer.zero_grad() once per step, before the first backward."
    source = "TrainCheck (Jiang et al. 2025) lists it among silent training errors"
    lasts = STAYS
    precedence = 14

    steps: int = Field(default=3, ge=1)

    def rests_when_quiet(self) -> bool:
        return True

    def init(self, table: ParameterTable, rows: Sequence[int]) -> StaleState:
        return StaleState()

    def update(self, state: StaleState, stats: StepStats) -> tuple[StaleState, Finding | None]:
        if not stats.is_stale:
            state.count, state.is_alarmed = 0, False
            return state, None
        state.count += 1
        if state.count < self.steps or state.is_alarmed:
            return state, None
        state.is_alarmed = True
        return state, Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="steps in a row with gradients that were not reset",
            value=state.count,
            threshold=self.steps,
            message=f"Gradients were not reset for {state.count} steps: each step adds to all the ones before.",
            advice=self.cure,
        )
