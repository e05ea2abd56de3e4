"""The loss rises instead of falling, and the gradient rises with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.evidence.trigger import Calm
from gradguard.printable import short
from gradguard.records import Finding, Severity


NUM_FIRST = 5  # losses whose median is the initial loss L0
NUM_RECENT = 10  # losses whose median is judged
RUNAWAY_STEPS = 20  # steps within which a bad start shows
RUNAWAY_RATIO = 10.0  # growth of the gradient norm per step, twice in a row, that no healthy start has
GRADIENT_RATIO = 10.0  # growth of the gradient norm since the start that makes a higher loss a diverging one
LOST_STEPS = 100  # a loss that is lost this early never was on its way down
LOST_RATIO = 20.0  # loss over the initial loss by then
LOSS_RATIO = 4.0  # and the loss over the initial loss; a GAN's generator reaches 3 while it trains well
REPEAT_AFTER = 10  # steps between two critical findings while the loss stays high
REPEAT_INFO_AFTER = 500  # and between two that are only worth knowing


@dataclass
class DivergenceState:
    """What the run started with, and the last steps.

    `last_alarm` is the step of the last finding; a rollback takes the whole state back with the windows.
    """

    first_losses: list[float] = field(default_factory=list)
    first_norms: list[float] = field(default_factory=list)
    recent_losses: list[float] = field(default_factory=list)
    recent_norms: list[float] = field(default_factory=list)
    last_alarm: int = -(10**9)


@DIAGNOSES.register
class Divergence(Diagnosis[DivergenceState]):
    """The median of the last 10 losses is above the initial loss, or the first steps run away.

    Args:
        ratio: median of the last 10 losses over the initial loss L0 from which it is reported, > 1.
    """

    name = "divergence"
    what = "The loss is higher than at the start and the updates make it worse: usually the learning rate is too high."
    computed = (
        "L0 is the first loss or the median of the first 5, whichever is lower. Reported from step 10 on when the "
        "median of the last 10 losses exceeds ratio x L0, as info: it happens in healthy GANs and in reinforcement "
        "learning. Critical when the gradient norm is also 10 times the first one, and the loss either doubles within "
        "10 steps above 4 x L0 or is above 20 x L0 within the first 100 steps. A bad start is critical at once: within "
        "20 steps the norm grew tenfold twice in a row while the loss rose."
    )
    cure = (
        "Lower the learning rate by 10, warm it up, scale inputs and targets to unit variance, check the loss's sign."
    )
    source = "TheDeepChecker (Ben Braiek and Khomh 2022) for the initial-loss rule; thresholds chosen 2026-11"
    follows = ("bad_inputs", "bad_initialization", "stale_gradients", "exploding_gradient", "update_spike")
    precedence = 22

    ratio: float = Field(default=1.5, gt=1)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> DivergenceState:
        return DivergenceState()

    def update(self, state: DivergenceState, stats: StepStats) -> tuple[DivergenceState, Finding | None]:
        if not stats.has_loss or not math.isfinite(stats.loss) or not stats.finite:
            return state, None
        losses = state.recent_losses
        self.pass_by(state, stats)
        if len(state.first_losses) < NUM_FIRST:
            state.first_losses.append(stats.loss)
            state.first_norms.append(stats.global_norm)
        if stats.step < RUNAWAY_STEPS and self._runs_away(state):
            return state, self._finding(state, stats, losses[-1], losses[-3], None, "critical", "bad start")
        if len(losses) < NUM_RECENT or stats.step < NUM_RECENT or stats.loss < state.first_losses[0]:
            return state, None
        return state, self._judge(state, stats)

    def pass_by(self, state: DivergenceState, stats: StepStats) -> DivergenceState:
        if stats.has_loss:
            state.recent_losses.append(stats.loss)
            state.recent_norms.append(stats.global_norm)
            if len(state.recent_losses) > NUM_RECENT:
                del state.recent_losses[0], state.recent_norms[0]
        return state

    def calm(self, state: DivergenceState, stats: StepStats) -> Calm | None:
        if not stats.has_loss:
            return Calm()
        if stats.step < RUNAWAY_STEPS or len(state.first_losses) < NUM_FIRST:
            return None
        _, threshold = self._threshold(state)
        return Calm(loss_most=threshold) if max(state.recent_losses) <= threshold else None

    def _threshold(self, state: DivergenceState) -> tuple[float, float]:
        """Return (initial loss, what the median of the recent ones must exceed)."""
        initial = min(state.first_losses[0], _median(state.first_losses))
        return initial, initial + (self.ratio - 1.0) * abs(initial) + 3.0 * _noise(state)

    def _runs_away(self, state: DivergenceState) -> bool:
        losses, norms = state.recent_losses[-3:], state.recent_norms[-3:]
        return (
            len(norms) == 3
            and norms[1] > RUNAWAY_RATIO * norms[0] > 0
            and norms[2] > RUNAWAY_RATIO * norms[1]
            and losses[2] > losses[1] > losses[0]
        )

    def _judge(self, state: DivergenceState, stats: StepStats) -> Finding | None:
        initial, threshold = self._threshold(state)
        recent = _median(state.recent_losses)
        if not recent > threshold:
            return None
        if stats.step - state.last_alarm < REPEAT_AFTER:
            return None
        grew = _median(state.recent_norms) > GRADIENT_RATIO * _median(state.first_norms[:1])
        doubles = _median(state.recent_losses[5:]) > 2.0 * _median(state.recent_losses[:5])
        is_running_away = doubles and recent > LOSS_RATIO * abs(initial)
        is_lost_at_once = stats.step < LOST_STEPS and recent > LOST_RATIO * abs(initial)
        severity: Severity = "critical" if grew and (is_running_away or is_lost_at_once) else "info"
        if severity == "info":
            base = _median(state.first_losses)  # one low first loss is no reason to speak
            is_high = recent > base + (self.ratio - 1.0) * abs(base) + 3.0 * _noise(state)
            if not is_high or stats.step - state.last_alarm < REPEAT_INFO_AFTER:
                return None
        return self._finding(state, stats, recent, initial, threshold, severity, "loss above its start")

    def _finding(
        self,
        state: DivergenceState,
        stats: StepStats,
        loss: float,
        initial: float,
        threshold: float | None,
        severity: Severity,
        kind: str,
    ) -> Finding:
        state.last_alarm = stats.step
        first, now = _median(state.first_norms), _median(state.recent_norms)
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="loss",
            value=loss,
            baseline=initial,
            threshold=threshold,
            window=NUM_RECENT,
            message=f"The loss went up from {short(initial)} to {short(loss)} "
            f"(gradient norm {short(first)} -> {short(now)}).",
            advice="Lower the learning rate by a factor of 10, or warm it up; scale inputs and targets.",
            evidence={"kind": kind, "first_norm": first, "recent_norm": now},
        )


def _noise(state: DivergenceState) -> float:
    """Return the range of the first losses where it is the only scale that there is: when some are not positive."""
    return max(state.first_losses) - min(state.first_losses) if min(state.first_losses) <= 0 else 0.0


def _median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
