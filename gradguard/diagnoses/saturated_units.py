"""Sigmoids and tanhs that are stuck in their flat parts, where no gradient passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.probe_stats import Activations
from gradguard.evidence.progress import WINDOW, has_learned, share_left
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import layer_name
from gradguard.records import MAX_NAMES, Finding, Severity


CONFIRM = 3  # probes in a row
REPEAT_AFTER = 500  # steps between two findings of one severity while it lasts


@dataclass
class SaturatedState:
    """By layer: probes in a row with too many saturated entries. By severity: step of the last finding."""

    streaks: dict[str, int] = field(default_factory=dict)
    last_alarm: dict[str, int] = field(default_factory=dict)


@DIAGNOSES.register
class SaturatedUnits(Diagnosis[SaturatedState]):
    """Most entries of a hidden tanh or sigmoid lie where it is flat.

    Args:
        share: saturated entries of a layer over all of its entries from which it is reported, in (0, 1).
    """

    name = "saturated_units"
    what = "Most outputs of a sigmoid or tanh layer are at its limits, where it is flat: hardly any gradient passes."
    computed = (
        "Share of the entries of a layer with |tanh| > 0.99, or a sigmoid outside of (0.0067, 0.9933). Reported when "
        "it exceeds `share` at three probes in a row, as worth knowing while the loss is below half of its start. The "
        "model's last layer is left out: sure answers are what it is for."
    )
    cure = (
        "Standardise the inputs; Xavier initialisation; ReLU, LeakyReLU, ELU or GELU in place of sigmoid and tanh; "
        "batch or layer normalisation; a lower learning rate."
    )
    source = "Glorot and Bengio 2010; healthy set-ups stay below 0.02, failing ones exceed 0.94"
    follows = ("exploding_gradient", "divergence", "loss_spike", "update_spike", "bad_inputs", "bad_initialization")
    lasts = STAYS
    reads = frozenset({"activations"})
    precedence = 40

    share: float = Field(default=0.5, gt=0, lt=1)

    def rests_when_quiet(self) -> bool:
        return True

    def loss_windows(self) -> Sequence[int]:
        return (WINDOW,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> SaturatedState:
        return SaturatedState()

    def update(self, state: SaturatedState, stats: StepStats) -> tuple[SaturatedState, Finding | None]:
        seen = stats.activations
        if seen is None:
            return state, None
        found = []
        for place in np.flatnonzero(seen.saturated == seen.saturated).tolist():
            name, saturated = seen.names[place], float(seen.saturated[place])
            is_bad = saturated > self.share and not seen.is_answer(place) and not seen.is_gate(place)
            state.streaks[name] = state.streaks.get(name, 0) + 1 if is_bad else 0
            if state.streaks[name] >= CONFIRM:
                found.append((saturated, name))
        return state, self._finding(state, stats, seen, sorted(found, reverse=True)) if found else None

    def _finding(
        self, state: SaturatedState, stats: StepStats, seen: Activations, found: list[tuple[float, str]]
    ) -> Finding | None:
        left = share_left(stats)
        severity: Severity = "info" if has_learned(left) else "warn"
        if stats.step - state.last_alarm.get(severity, -REPEAT_AFTER) < REPEAT_AFTER:
            return None
        state.last_alarm[severity] = stats.step
        worst, name = found[0]
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="share of saturated entries",
            value=worst,
            threshold=self.share,
            parameters=tuple(name for _, name in found[:MAX_NAMES]),
            num_parameters=len(found),
            message=(
                f"{worst:.0%} of what {layer_name(name)} gives is at the limits of its activation, "
                "where no gradient passes."
            ),
            advice=self.cure,
            evidence={"layers": len(found), "loss_left": left},
        )
