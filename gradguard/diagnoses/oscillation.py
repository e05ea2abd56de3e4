"""A loss that jumps about instead of falling, or updates that undo each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low

import numpy as np
from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.running import MAD_TO_SIGMA
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.evidence.trigger import Calm
from gradguard.printable import short
from gradguard.records import Finding, Severity


NUM_FIRST = 20  # losses whose mean is the start as well: two tasks in turn have two levels
NUM_LOSSES = 100  # that are judged together
STRIDE = 20  # losses between two judgements
CONFIRM = 2  # judgements in a row
NOT_FALLING = 0.7  # mean loss over the initial one, above which noise keeps the run from learning
LOST = 0.9  # the mean loss over the initial one
OUTBURST = 2.5  # and the ninth decile over it, of a run in which single steps undo what was learnt
NUM_COSINES = 5  # probes whose cosines are judged together
DIFFERENCE_TO_SIGMA = MAD_TO_SIGMA / math.sqrt(2.0)  # a difference of two losses has the noise of both
REPEAT_AFTER = 500  # steps between two findings of one kind while it lasts


@dataclass
class OscillationState:
    """The last losses and cosines, newest last, the mean of the first losses, and when what was last found."""

    losses: list[float] = field(default_factory=list)
    start: float = 0.0
    cosines: list[float] = field(default_factory=list)
    noisy: int = 0
    last_alarm: dict[str, int] = field(default_factory=dict)


@DIAGNOSES.register
class Oscillation(Diagnosis[OscillationState]):
    """The noise of the loss is large beside its start while it does not fall, or successive updates point backwards.

    Args:
        noise: robust deviation of the loss from step to step over the loss at the start from which it is reported, > 0.
        cosine: median cosine of successive updates below which it is, in (-1, 0).
    """

    name = "oscillation"
    what = (
        "The training jumps back and forth instead of going down: the steps are too long for this loss or this batch."
    )
    computed = (
        "Noise = 1.4826 MAD of the differences of successive losses / sqrt(2), over 100 losses, so that a fall is no "
        "noise. The start is the initial loss or the mean of the first 20, whichever is higher. Worth knowing when it "
        "exceeds `noise` x the initial loss while the mean loss is above 0.7 of it, twice in a row; a warning when the "
        "mean is above 0.9 and every tenth loss above 2.5 of it. Updates: worth knowing when the median cosine of an "
        "update with the one before is below `cosine` over 5 probes, as it is around any minimum. Losses that are not "
        "positive are not judged."
    )
    cure = "Lower the learning rate by 3 to 10, enlarge the batch or accumulate gradients over several, lower momentum."
    source = "AUTOTRAINER (Zhang et al. 2021) names the failure; amplitudes measured on healthy and failing set-ups"
    follows = ("exploding_gradient", "divergence", "update_ratio", "bad_inputs")
    lasts = STAYS
    reads = frozenset({"updates"})
    precedence = 60

    noise: float = Field(default=0.15, gt=0)
    cosine: float = Field(default=-0.3, gt=-1, lt=0)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> OscillationState:
        return OscillationState()

    def calm(self, state: OscillationState, stats: StepStats) -> Calm | None:
        if not stats.has_loss:
            return Calm()
        num_judgements = max(0, CONFIRM - state.noisy - 1)  # that cannot be told yet
        return Calm(NUM_LOSSES - len(state.losses) - 1 + STRIDE * num_judgements)

    def pass_by(self, state: OscillationState, stats: StepStats) -> OscillationState:
        if len(state.losses) + 1 >= NUM_LOSSES:
            return self.update(state, stats)[0]
        if stats.has_loss:
            state.losses.append(stats.loss)
        return state

    def update(self, state: OscillationState, stats: StepStats) -> tuple[OscillationState, Finding | None]:
        finding = None
        if stats.updates is not None and math.isfinite(stats.updates.cosine):
            state.cosines.append(stats.updates.cosine)
            del state.cosines[:-NUM_COSINES]
            finding = self._judge_updates(state, stats)
        if stats.has_loss and math.isfinite(stats.loss):
            state.losses.append(stats.loss)
            if len(state.losses) >= NUM_LOSSES:
                finding = self._judge_losses(state, stats) or finding
                del state.losses[:STRIDE]
        return state, finding

    def _judge_updates(self, state: OscillationState, stats: StepStats) -> Finding | None:
        middle = median_low(state.cosines)
        if len(state.cosines) < NUM_COSINES or not middle < self.cosine:
            return None
        message = (
            f"Successive updates point backwards (median cosine {middle:.2f}): each undoes part of the one before."
        )
        return self._finding(state, stats, "updates", "info", "median cosine", middle, self.cosine, message)

    def _judge_losses(self, state: OscillationState, stats: StepStats) -> Finding | None:
        state.start = state.start or fmean(state.losses[:NUM_FIRST])
        initial = max(stats.initial_loss, state.start)
        lowest, highest = min(state.losses), max(state.losses)
        # No difference is larger than the range: mostly that says it all.
        if not (initial > 0.0 and lowest > 0.0) or DIFFERENCE_TO_SIGMA * (highest - lowest) <= self.noise * initial:
            state.noisy = 0
            return None
        losses = np.array(state.losses)
        noise = DIFFERENCE_TO_SIGMA * float(np.median(np.abs(np.diff(losses))))
        mean = fmean(state.losses)
        is_noisy = noise > self.noise * initial and mean > NOT_FALLING * initial
        state.noisy = state.noisy + 1 if is_noisy else 0
        if state.noisy < CONFIRM:
            return None
        is_lost = mean > LOST * initial and float(np.quantile(losses, 0.9)) > OUTBURST * initial
        severity: Severity = "warn" if is_lost else "info"
        share = noise / initial
        message = f"The loss jumps by {short(noise)} from step to step, {share:.0%} of its start, and does not fall."
        return self._finding(state, stats, "loss", severity, "noise of the loss", noise, self.noise * initial, message)

    def _finding(
        self,
        state: OscillationState,
        stats: StepStats,
        kind: str,
        severity: Severity,
        statistic: str,
        value: float,
        threshold: float,
        message: str,
    ) -> Finding | None:
        key = f"{kind} {severity}"
        if stats.step - state.last_alarm.get(key, -REPEAT_AFTER) < REPEAT_AFTER:
            return None
        state.last_alarm[key] = stats.step
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic=statistic,
            value=value,
            threshold=threshold,
            window=NUM_LOSSES if kind == "loss" else None,
            message=message,
            advice=self.cure,
            evidence={"kind": kind, "initial_loss": stats.initial_loss, "first_losses": state.start},
        )
