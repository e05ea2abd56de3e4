"""Parameters that are meant to be trained and never move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.probe_stats import Updates
from gradguard.evidence.progress import WINDOW, has_learned, share_left
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.records import MAX_NAMES, Finding, Severity


MOST = 0.5  # share of the parameters; more than that are no part that is just rarely used
NEGLIGIBLE = 1e-5  # of the global norm: below it a gradient is rounding, as that of a bias before batch normalisation


@dataclass
class FrozenState:
    """Probes in a row at which each was seen still: names outside of the optimizer, rows inside, and all at once.

    `told` holds what was reported, by kind and severity; each is reported once.
    """

    table: ParameterTable
    rows: frozenset[int]
    untrained: dict[str, int] = field(default_factory=dict)
    unmoved: dict[int, int] = field(default_factory=dict)
    unreached: dict[int, int] = field(default_factory=dict)
    without_signal: int = 0
    told: dict[str, list[str]] = field(default_factory=dict)


@DIAGNOSES.register
class FrozenParameters(Diagnosis[FrozenState]):
    """A parameter wants a gradient, yet it is in no optimizer, does not move, or never gets one.

    Args:
        probes: probes in a row at which it must have been still, >= 1.
    """

    name = "frozen_parameters"
    what = "Some parameters are never changed: no optimizer has them, their updates are lost, or no gradient comes."
    computed = (
        "At `probes` probes in a row: a parameter outside of the optimizer has a gradient and has not changed since "
        "the guard was attached; one inside has a gradient above 1e-5 of the global norm and no entry changed, while "
        "the learning rate is above 0; or the gradients of all are exactly 0. The latter two are only worth knowing "
        "once the loss is below half of its start. Parameters that want a gradient and never got one: a warning when "
        "they are most of all, as behind a `detach()`; a part that is rarely used is only worth knowing."
    )
    cure = (
        "Hand all parameters to the optimizer (model.parameters()), or set requires_grad to False for those that are "
        "meant to stay. Updates that get lost: keep the weights in float32, raise the learning rate."
    )
    source = "TrainCheck (Jiang et al. 2025) and TFCheck list untrained parameters among silent training errors"
    follows = ("exploding_gradient", "dead_units", "vanishing_gradient", "bad_initialization")
    lasts = STAYS
    reads = frozenset({"updates"})
    precedence = 15

    probes: int = Field(default=2, ge=1)

    def rests_when_quiet(self) -> bool:
        return True

    def loss_windows(self) -> Sequence[int]:
        return (WINDOW,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> FrozenState:
        return FrozenState(table, frozenset(rows))

    def update(self, state: FrozenState, stats: StepStats) -> tuple[FrozenState, Finding | None]:
        updates = stats.updates
        if updates is None:
            return state, None
        self._count(state, stats, updates)
        left = share_left(stats)
        of_run: Severity = "info" if has_learned(left) or left != left else "warn"
        names = state.table.names
        if outside := [name for name, count in state.untrained.items() if count >= self.probes]:
            message = ": gradients come, but no optimizer to use them."
            if finding := self._tell(state, stats, "untrained", "warn", outside, message):
                return state, finding
        if state.without_signal >= self.probes:
            message = " and all others have gradients of exactly 0: nothing is learnt."
            if finding := self._tell(state, stats, "without_signal", of_run, names, message):
                return state, finding
        if still := [names[row] for row, count in state.unmoved.items() if count >= self.probes]:
            message = ": gradients come, but the updates are too small for the precision of the weights."
            if finding := self._tell(state, stats, "unmoved", of_run, still, message):
                return state, finding
        if unreached := [names[row] for row, count in state.unreached.items() if count >= self.probes]:
            message = ": no gradient ever came. The loss does not depend on these weights."
            severity: Severity = "warn" if len(unreached) > MOST * len(state.rows) else "info"
            return state, self._tell(state, stats, "unreached", severity, unreached, message)
        return state, None

    def _count(self, state: FrozenState, stats: StepStats, updates: Updates) -> None:
        """Count one more probe for whatever is still, and forget what moves."""
        state.untrained = {name: state.untrained.get(name, 0) + 1 for name in updates.untrained}
        told = [row for row in updates.unmoved if row in state.rows] if updates.lr > 0.0 else []
        unmoved = [row for row in told if float(stats.norms[row]) > NEGLIGIBLE * stats.global_norm]
        state.unmoved = {row: state.unmoved.get(row, 0) + 1 for row in unmoved}
        unreached = [row for row in updates.without_gradient if row in state.rows]
        state.unreached = {row: state.unreached.get(row, 0) + 1 for row in unreached}
        is_silent = stats.finite and stats.global_norm == 0.0 and len(unreached) < len(state.rows)
        state.without_signal = state.without_signal + 1 if is_silent else 0

    def _tell(
        self, state: FrozenState, stats: StepStats, kind: str, severity: Severity, names: list[str], message: str
    ) -> Finding | None:
        told = state.told.setdefault(f"{kind} {severity}", [])
        fresh = [name for name in names if name not in told]
        if not fresh:
            return None
        told += fresh
        others = f" and {len(fresh) - 1} more" if len(fresh) > 1 and kind != "without_signal" else ""
        known = {name: row for row, name in enumerate(state.table.names)}
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="probes in a row without a change",
            value=self.probes,
            threshold=self.probes,
            parameters=tuple(fresh[:MAX_NAMES]),
            num_parameters=len(fresh),
            message=f"{fresh[0]}{others}{message}",
            advice=self.cure,
            evidence={"kind": kind},
            indices=tuple(known[name] for name in fresh if name in known),
        )
