"""The gradient of a recurrent network dies on its way back through the time steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.progress import WINDOW, share_left
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import layer_name, short
from gradguard.records import MAX_NAMES, Finding, Severity


CONFIRM = 2  # probes in a row
NOT_MOVED = 0.9  # share of the initial loss above which nothing was learnt; a language model learns from near words
REPEAT_AFTER = 500  # steps between two findings of one severity while it lasts


@dataclass
class InTimeState:
    """By recurrent module: probes in a row below the limit. By severity: step of the last finding."""

    streaks: dict[str, int] = field(default_factory=dict)
    last_alarm: dict[str, int] = field(default_factory=dict)


@DIAGNOSES.register
class VanishingInTime(Diagnosis[InTimeState]):
    """Of the gradient at a recurrent module's last time step next to nothing reaches its first.

    Args:
        min_first_to_last: norm(gradient at the first state)/norm(gradient at the last) below which it is reported, in
            (0, 1).
    """

    name = "vanishing_in_time"
    what = "A recurrent layer forgets: the beginning of a sequence gets no gradient, so nothing is learnt from it."
    computed = (
        "tau = norm(dL/dh at the first time step)/norm(dL/dh at the last) of a recurrent module. Reported when it is "
        "below `min_first_to_last` at two probes in a row, as worth knowing once the loss is below 0.9 of its start: a "
        "model may learn from the near past alone."
    )
    cure = (
        "Use LSTM or GRU, with a forget bias of 1; initialise the recurrent weights orthogonally with a gain of about "
        "1; shorten the sequences, or add attention or a skip over time."
    )
    source = "Bengio et al. 1994, Pascanu et al. 2013"
    reads = frozenset({"activations"})
    lasts = STAYS
    precedence = 36

    min_first_to_last: float = Field(default=1e-3, gt=0, lt=1)

    def rests_when_quiet(self) -> bool:
        return True

    def loss_windows(self) -> Sequence[int]:
        return (WINDOW,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> InTimeState:
        return InTimeState()

    def update(self, state: InTimeState, stats: StepStats) -> tuple[InTimeState, Finding | None]:
        seen = stats.activations
        if seen is None:
            return state, None
        for name, left in seen.through_time.items():
            state.streaks[name] = state.streaks.get(name, 0) + 1 if left < self.min_first_to_last else 0
        found = sorted((left, name) for name, left in seen.through_time.items() if state.streaks[name] >= CONFIRM)
        if not found:
            return state, None
        share = share_left(stats)
        severity: Severity = "info" if share < NOT_MOVED else "warn"
        if stats.step - state.last_alarm.get(severity, -REPEAT_AFTER) < REPEAT_AFTER:
            return state, None
        state.last_alarm[severity] = stats.step
        worst, name = found[0]
        return state, Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="gradient at the first time step over the last",
            value=worst,
            threshold=self.min_first_to_last,
            parameters=tuple(name for _, name in found[:MAX_NAMES]),
            num_parameters=len(found),
            message=(
                f"{layer_name(name)}: {short(worst, 1)} of the gradient at the last time step is left at the first."
            ),
            advice=self.cure,
            evidence={"loss_left": share},
        )
