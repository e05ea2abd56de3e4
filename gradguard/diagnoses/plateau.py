"""A loss that has stopped falling: at the start already, on the way, or because the goal is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np
from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.rank_test import rank_p_value
from gradguard.evidence.running import MAD_TO_SIGMA
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.evidence.trigger import Calm
from gradguard.printable import short
from gradguard.records import Finding, Severity


BUCKET = 10  # losses whose median is one point of the curve
MAX_POINTS = 256  # of the curve; then pairs of neighbours become one
MIN_POINTS = 16  # from which it is judged
CONFIRM = 3  # judgements in a row that say stuck
CONFIRM_FLAT = 2  # and that say flat
NEVER_MOVED = 0.025  # distance of each fifth's median from the initial loss, as a share, of a run that never moved
NOISE_MOVES = 3.0  # times the curve's noise, which may move them too,
MOST_MOVED = 0.1  # up to this share
NOISY = 0.15  # distance of every point from the initial loss, as a share
HARDLY_POINTS = 25  # from which a run whose fifths moved by less than
HARDLY_MOVED = 0.04  # this share is stuck although it still falls
NOISY_GAIN = 0.01  # fall of the loss as a share of the initial one, up to which it may be noise: the rank test says
AT_CHANCE = 0.02  # distance from ln C, as a share of it
CONVERGED = 0.05  # share of the initial loss below which nothing is left to learn
P_FLAT = 0.05  # of the rank test, above which two windows do not differ


@dataclass
class PlateauState:
    """The curve of the loss so far, and what is known of the outputs.

    `points` are medians of `size` losses, oldest first; `recent` waits to become the next one. `rate` is the learning
    rate at the last point, `since` the first point of the learning rate's last rise. Before so many losses a stuck run
    (`stuck_until`) and a plain plateau (`quiet_until`) are not told again.
    """

    points: list[float] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    size: int = BUCKET
    num_losses: int = 0
    num_outputs: int = 0
    rate: float = math.inf
    since: int = 0
    confirmed: int = 0
    flat: int = 0
    stuck_until: int = 0
    quiet_until: int = 0


@DIAGNOSES.register
class Plateau(Diagnosis[PlateauState]):
    """The loss is flat: it never left its start, it is that of guessing, or it stopped on the way.

    Args:
        improvement: fall of the median from one window to the next, as a share of the initial loss, below which the
            loss is flat, in (0, 1).
    """

    name = "plateau"
    what = "The loss does not fall any more. When it never did, or is that of guessing, the model learns nothing."
    computed = (
        "The curve is made of medians of 10 losses (of more in long runs); its last third is compared with the third "
        "before, so that the windows grow with the run. Flat: the median falls by less than `improvement` of the "
        "initial loss, or by less than 0.01 without a difference in the rank test (p > 0.05). Stuck, if flat three "
        "times in a row from 160 losses on: each fifth lies within 2.5 % of the initial loss (3 times the curve's "
        "noise, at most 10 %) and no point beyond 15 %; or the last third within 2 % of ln C, for a model of C "
        "outputs. Also stuck: within 4 % of the start after 250 losses. Plateau, worth knowing: flat elsewhere, and a "
        "rank test finds no difference (p > 0.05). Converged, not reported: below 5 % of the initial loss. Not judged: "
        "losses that are not positive, and a learning rate that rises."
    )
    cure = (
        "Stuck at the start: check that labels belong to their inputs, that the loss fits the output layer (no softmax "
        "before cross-entropy, equal shapes), and that the learning rate is neither tiny nor huge. Later: lower the "
        "learning rate, a larger model, or more data."
    )
    source = "Mann and Whitney 1947 for the rank test; healthy set-ups fall by 1 % and more per 30 steps at the start"
    follows = (
        "nonfinite",
        "exploding_gradient",
        "divergence",
        "loss_spike",
        "update_spike",
        "dead_units",
        "vanishing_gradient",
        "vanishing_in_time",
        "saturated_units",
        "update_ratio",
        "oscillation",
        "bad_initialization",
        "bad_inputs",
        "frozen_parameters",
    )
    lasts = STAYS
    reads = frozenset({"activations"})
    precedence = 65

    improvement: float = Field(default=0.003, gt=0, lt=1)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> PlateauState:
        return PlateauState()

    def calm(self, state: PlateauState, stats: StepStats) -> Calm | None:
        if not stats.has_loss:
            return Calm()
        num_points = max(0, min(CONFIRM - state.confirmed, CONFIRM_FLAT - state.flat) - 1)  # that cannot be told yet
        return Calm(state.size * (num_points + 1) - len(state.recent) - 1)

    def pass_by(self, state: PlateauState, stats: StepStats) -> PlateauState:
        if len(state.recent) + 1 >= state.size:
            return self.update(state, stats)[0]
        if stats.has_loss:
            state.num_losses += 1
            state.recent.append(stats.loss)
        return state

    def update(self, state: PlateauState, stats: StepStats) -> tuple[PlateauState, Finding | None]:
        if stats.activations is not None and stats.activations.output is not None:
            state.num_outputs = stats.activations.output.num_units
        if not stats.has_loss or not math.isfinite(stats.loss):
            return state, None
        state.num_losses += 1
        state.recent.append(stats.loss)
        if len(state.recent) < state.size:
            return state, None
        self._add_point(state, stats.lr)
        return state, self._judge(state, stats)

    def _add_point(self, state: PlateauState, rate: float) -> None:
        state.points.append(median_low(state.recent))
        state.recent.clear()
        if rate > state.rate:
            state.since = len(state.points)
        state.rate = rate
        if len(state.points) >= MAX_POINTS:
            pairs = zip(state.points[::2], state.points[1::2], strict=True)
            state.points = [0.5 * (first + second) for first, second in pairs]
            state.size *= 2
            state.since //= 2

    def _judge(self, state: PlateauState, stats: StepStats) -> Finding | None:
        points = state.points[state.since :]
        if len(points) < MIN_POINTS or not min(state.points) > 0.0 or not stats.initial_loss > 0.0:
            state.confirmed = state.flat = 0
            return None
        third = len(points) // 3
        last, before = points[-third:], points[-2 * third : -third]
        level, initial = median_low(last), stats.initial_loss
        gain = (median_low(before) - level) / initial
        kind = self._stuck(state, points, level, gain, initial)
        state.confirmed = state.confirmed + 1 if kind else 0
        if kind and state.confirmed >= CONFIRM:
            if state.num_losses < state.stuck_until:
                return None
            state.stuck_until = 2 * state.num_losses
            return self._finding(state, stats, kind, "warn", level, gain)
        is_flat = not kind and abs(gain) < self.improvement and level > CONVERGED * initial
        state.flat = state.flat + 1 if is_flat else 0
        if state.flat < CONFIRM_FLAT or state.num_losses < state.quiet_until or rank_p_value(last, before) <= P_FLAT:
            return None
        state.quiet_until = 2 * state.num_losses
        return self._finding(state, stats, "plateau", "info", level, gain)

    def _stuck(self, state: PlateauState, points: list[float], level: float, gain: float, initial: float) -> str:
        """Return how the run is stuck, "" when it is not; what is cheap to know comes first."""
        is_near = max(max(state.points) - initial, initial - min(state.points)) < NOISY * initial
        chance = math.log(state.num_outputs) if state.num_outputs > 1 else math.nan
        is_guessing = abs(level - chance) < AT_CHANCE * chance
        if not (is_near or is_guessing):
            return ""
        third, fifth = len(points) // 3, len(points) // 5
        fifths = [median_low(points[start : start + fifth]) for start in range(0, len(points) - fifth + 1, fifth)]
        moved = max(abs(point - initial) for point in fifths) / initial
        is_noise = gain < NOISY_GAIN and rank_p_value(points[-third:], points[-2 * third : -third]) > P_FLAT
        if gain < self.improvement or is_noise:
            noise = float(MAD_TO_SIGMA * np.median(np.abs(np.diff(points)))) / (math.sqrt(2.0) * initial)
            if is_near and moved < min(max(NEVER_MOVED, NOISE_MOVES * noise), MOST_MOVED):
                return "stuck at the start"
            if is_guessing and all(abs(point - chance) < AT_CHANCE * chance for point in points[-third:]):
                return "stuck at chance"
        return "hardly moved" if is_near and len(points) >= HARDLY_POINTS and moved < HARDLY_MOVED else ""

    def _finding(
        self, state: PlateauState, stats: StepStats, kind: str, severity: Severity, level: float, gain: float
    ) -> Finding:
        told = {
            "stuck at the start": f"The loss never left its start: {short(level)} after {state.num_losses} losses.",
            "stuck at chance": f"The loss is {short(level)}, that of guessing among {state.num_outputs} classes.",
            "hardly moved": f"The loss has hardly moved from {short(stats.initial_loss, 4)} to {short(level, 4)}.",
            "plateau": f"The loss has stopped falling at {short(level)}.",
        }
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="fall of the loss from window to window over its start",
            value=gain,
            baseline=stats.initial_loss,
            threshold=self.improvement,
            window=state.size * (len(state.points) // 3),
            message=told[kind],
            advice=self.cure,
            evidence={"kind": kind, "loss": level},
        )
