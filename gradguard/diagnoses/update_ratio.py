"""Updates that are too small beside the weights to ever arrive, or so large that nothing learnt survives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.probe_stats import Activations, Updates
from gradguard.evidence.progress import WINDOW, has_learned, share_left
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import short
from gradguard.records import MAX_NAMES, Finding, Severity


CONFIRM_SMALL = 3  # probes in a row
CONFIRM_LARGE = 2
WARMUP = 20  # steps in which healthy updates reach a fifth of the weights
MOVED = 0.9  # share of the initial loss from which a run with tiny updates has moved all the same
FLOOR = 0.1  # times the square root of the rows: the least weight norm, for tensors that start at zero
SHAKING = 0.02  # median ratio of the last three probes, that healthy runs leave behind within the first steps,
NUM_SHAKING = 3
DYING = 0.5  # and share of dead units in some layer, from which the two together say that the steps are too long
MIN_UNITS, MIN_SAMPLES = 8, 16  # of such a layer
DEAD_KINDS = frozenset({"relu", "relu6", "gelu", "silu", "mish", "threshold", "hardswish"})
REPEAT_AFTER = 500  # steps between two findings of one kind while it lasts


@dataclass
class RatioState:
    """The weight matrices looked at; probes in a row with small and with large updates; the rate of the probe before.

    `recent` holds the median ratios of the last probes, `dead` the largest share of dead units at the last one.
    `last_alarm` is the step of the last finding by kind and severity.
    """

    table: ParameterTable
    matrices: npt.NDArray[np.int64]
    floors: npt.NDArray[np.float64]
    small: int = 0
    large: int = 0
    recent: list[float] = field(default_factory=list)
    dead: float = 0.0
    last_lr: float = math.inf
    last_alarm: dict[str, int] = field(default_factory=dict)


@DIAGNOSES.register
class UpdateRatio(Diagnosis[RatioState]):
    """The steps are far too short or far too long beside the weights that they change.

    Args:
        about: updates that are too "small", too "large", or "any" of both.
        smallest: median of norm(update)/norm(weight) over the matrices, for the largest learning rate so far, below
            which updates are too small, > 0.
        largest: the same, at this step's learning rate, above which they are too large, > 0.
    """

    name = "update_ratio"
    what = (
        "The size of the updates does not fit the weights: too small to learn in time, or so large that they undo it."
    )
    computed = (
        "u = norm(update)/norm(weight) per weight matrix, where a weight that starts at zero counts with a least norm. "
        "Too small: median u x lr_max/lr < `smallest` at three probes in a row, the learning rate does not rise and "
        "the loss is above 0.9 of its start. Too large: median u > `largest` at two probes in a row after 20 steps, "
        "only worth knowing while the loss is below half of its start; or above 0.02 at most of the last probes while "
        "more than half of a layer's units are dead, whatever the loss."
    )
    cure = (
        "Too small: raise the learning rate until u is about 1e-3, and check the scale of the loss. Too large: lower "
        "the learning rate by 3 to 10, warm it up."
    )
    source = "Rule of thumb of 1e-3 for SGD; healthy medians lie within 8.7e-5 and 0.011, the failing 2e-7 below"
    follows = (
        "stale_gradients",
        "exploding_gradient",
        "divergence",
        "dead_units",
        "saturated_units",
        "vanishing_gradient",
    )
    lasts = STAYS
    reads = frozenset({"updates", "activations"})
    precedence = 45

    about: Literal["any", "small", "large"] = "any"
    smallest: float = Field(default=1e-5, gt=0)
    largest: float = Field(default=1e-1, gt=0)

    def rests_when_quiet(self) -> bool:
        return True

    def loss_windows(self) -> Sequence[int]:
        return (WINDOW,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> RatioState:
        matrices = np.array([row for row in rows if table.is_matrix[row]], dtype=np.int64)
        floors = FLOOR * np.sqrt(np.array([table.shapes[row][0] for row in matrices], dtype=np.float64))
        return RatioState(table, matrices, floors)

    def update(self, state: RatioState, stats: StepStats) -> tuple[RatioState, Finding | None]:
        updates = stats.updates
        if stats.activations is not None:
            state.dead = _largest_dead_share(stats.activations)
        if updates is None or not updates.lr > 0.0:
            return state, None
        is_rising = updates.lr > state.last_lr
        state.last_lr = updates.lr
        ratios, rows = self._ratios(state, updates)
        if not len(ratios):
            return state, None
        median = float(np.median(ratios))
        at_full_rate = median * (updates.lr_max / updates.lr)
        left = share_left(stats)
        is_small = at_full_rate < self.smallest and not is_rising and not left < MOVED
        state.small = state.small + 1 if is_small else 0
        state.recent.append(median)
        del state.recent[:-NUM_SHAKING]
        is_shaking = len(state.recent) == NUM_SHAKING and float(np.median(state.recent)) > SHAKING
        is_dying = is_shaking and state.dead > DYING
        is_large = (median > self.largest or is_dying) and updates.step >= WARMUP
        state.large = state.large + 1 if is_large else 0
        if state.small >= CONFIRM_SMALL and self.about != "large":
            severity: Severity = "warn" if left == left else "info"
            return state, self._finding(state, stats, "small", severity, at_full_rate, rows[np.argsort(ratios)])
        if state.large >= CONFIRM_LARGE and self.about != "small":
            severity = "info" if has_learned(left) and not is_dying else "warn"
            value = max(median, float(np.median(state.recent)))
            return state, self._finding(state, stats, "large", severity, value, rows[np.argsort(-ratios)])
        return state, None

    def _ratios(self, state: RatioState, updates: Updates) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return norm(update)/norm(weight) of the matrices where both are known, and their rows."""
        moved = updates.update_norms[state.matrices].astype(np.float64)
        weights = np.maximum(updates.weight_norms[state.matrices].astype(np.float64), state.floors)
        weights[np.isin(state.matrices, updates.without_gradient)] = np.nan  # nobody trains these
        known = np.isfinite(moved) & np.isfinite(weights) & (weights > 0.0)
        return moved[known] / weights[known], state.matrices[known]

    def _finding(
        self,
        state: RatioState,
        stats: StepStats,
        kind: str,
        severity: Severity,
        value: float,
        rows: npt.NDArray[np.int64],
    ) -> Finding | None:
        key = f"{kind} {severity}"
        if stats.step - state.last_alarm.get(key, -REPEAT_AFTER) < REPEAT_AFTER:
            return None
        state.last_alarm[key] = stats.step
        size = "too small to learn from" if kind == "small" else "so large that they undo what was learnt"
        dead = f" {state.dead:.0%} of the units of a layer are dead." if kind == "large" and state.dead > DYING else ""
        advice = "Raise the learning rate" if kind == "small" else "Lower the learning rate by a factor of 3 to 10"
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="median of norm(update)/norm(weight)",
            value=value,
            baseline=1e-3,
            threshold=self.smallest if kind == "small" else self.largest if value > self.largest else SHAKING,
            parameters=tuple(state.table.names[int(row)] for row in rows[:MAX_NAMES]),
            num_parameters=len(rows),
            message=f"The updates are {short(value, 1)} of the weights, {size} (1e-3 is usual).{dead}",
            advice=f"{advice}; check the scale of the loss and of the inputs.",
            evidence={"kind": kind, "loss_left": share_left(stats)},
            indices=tuple(int(row) for row in rows),
        )


def _largest_dead_share(seen: Activations) -> float:
    """Return the largest share of dead units in a rectifying layer, 0 when there is none to look at."""
    shares = [
        float(seen.dead[place])
        for place, kind in enumerate(seen.kinds)
        if kind in DEAD_KINDS and seen.num_units[place] >= MIN_UNITS and seen.num_samples[place] >= MIN_SAMPLES
    ]
    return max(shares, default=0.0)
