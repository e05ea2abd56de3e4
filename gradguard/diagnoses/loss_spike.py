"""One loss far above everything in its recent past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.running import LossWindow
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.evidence.trigger import Calm, Trigger
from gradguard.printable import short
from gradguard.records import Finding


NUM_FIRST = 5  # losses whose median is the initial loss
EARLY = 3  # losses from which an extreme loss is believed although the window is still short
EARLY_RATIO = 100.0  # such a loss is this many times the largest so far
MIN_DEVIATION = 0.03  # floor of the deviation in ln units, and of the deviation over |median| for losses of any sign
MIN_SHARE = 0.3  # a spike below this share of the initial loss is noise around a fitted model
BROKEN_LOSS = 2.0  # a loss this many times the initial one, worse than no training at all, needs less of a z:
BROKEN_Z = 0.6  # this share of it
UNDONE_LOSS = 1.0  # a loss this many times the initial one: nothing of what was learnt is left
LEARNED_LOSS = 0.6  # in a run that had come down to this share of it is a spike whatever the ratio
RAISED_LOSS = 3.0  # unless the loss is this many times the initial one
RAISED_LR = 1.5  # a learning rate this far above the window's usual one explains a higher loss
CALM_STEPS = 20  # for which the loss is bounded beforehand


@dataclass
class LossSpikeState:
    """The initial loss, from the first losses; the learning rates of the window, newest last."""

    first: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


@DIAGNOSES.register
class LossSpike(Diagnosis[LossSpikeState]):
    """The loss of this step stands far above its own rolling distribution, one-sided.

    Args:
        ratio: loss over the window's median from which it is a spike, > 1 (for positive losses).
        zscore: robust z of ln(loss) (of the loss itself when losses are not positive), > 0.
        window: steps of the rolling statistics, >= 2 and at most 100,000.
        warmup: losses before it is judged, >= 2; an extreme one is believed after 3.
    """

    name = "loss_spike"
    what = "The loss of this step is far above everything recent: a bad batch, or an update that broke the model."
    computed = (
        "z = (ln L - median ln L) / max(1.4826 MAD, 0.03) over the window (without logarithms when a loss is not "
        "positive). Alarm: z > zscore, L above the window's largest loss but for three outliers, above 0.3 of the "
        "initial loss, and above ratio x median (or above the initial loss in a run that had come down to 0.6 of "
        "it). After a rise of the learning rate L must be 3 times the initial loss; twice the initial loss needs only "
        "0.6 x zscore."
    )
    cure = (
        "Look at the samples of that step. If spikes come back on other data, lower the learning rate or clip harder."
    )
    source = "PaLM (Chowdhery et al. 2022, section 5.1) and OLMo-core describe the failure; thresholds chosen 2026-11"
    follows = ("bad_inputs", "stale_gradients", "exploding_gradient", "update_spike")
    precedence = 24

    is_foreseeable = True

    ratio: float = Field(default=3.0, gt=1)
    zscore: float = Field(default=10.0, gt=0)
    window: int = Field(default=50, ge=2, le=100_000)
    warmup: int = Field(default=20, ge=2)

    def loss_windows(self) -> Sequence[int]:
        return (self.window,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> LossSpikeState:
        return LossSpikeState()

    def update(self, state: LossSpikeState, stats: StepStats) -> tuple[LossSpikeState, Finding | None]:
        if not stats.has_loss or not math.isfinite(stats.loss):
            return state, None
        losses = stats.losses[self.window]
        self.pass_by(state, stats)
        is_judged = len(losses) >= min(EARLY, self.window) and stats.loss > losses.upper
        finding = self._judge(state, stats, losses) if is_judged else None
        if len(state.first) < NUM_FIRST:
            state.first.append(stats.loss)
        return state, finding

    def pass_by(self, state: LossSpikeState, stats: StepStats) -> LossSpikeState:
        if stats.has_loss:
            state.rates.append(stats.lr)
            if len(state.rates) > self.window:
                del state.rates[0]
        return state

    def calm(self, state: LossSpikeState, stats: StepStats) -> Calm | None:
        losses = stats.losses[self.window]
        if not stats.has_loss:
            return Calm()
        if len(losses) < min(self.warmup, self.window):
            return None
        steps = min(CALM_STEPS, (len(losses) - 1) // 2)
        median, upper = losses.surely_usual(steps)
        if losses.minimum > 0:  # and stays so, since every loss to come is
            initial = sorted(state.first)[len(state.first) // 2]
            risen = self.ratio * median
            if median < LEARNED_LOSS * initial:
                risen = min(risen, UNDONE_LOSS * initial)
            return Calm(steps, 0.0, risen if not upper > risen else upper)
        return Calm(steps, -math.inf, upper)

    def triggers(self, state: LossSpikeState, stats: StepStats) -> Sequence[Trigger]:
        losses = stats.losses[self.window]
        if len(losses) < min(EARLY, self.window):
            return ()
        initial = sorted(state.first)[len(state.first) // 2]
        if len(losses) < min(self.warmup, self.window):
            level = max(EARLY_RATIO * losses.maximum, initial) if losses.minimum > 0 else math.inf
            return (Trigger("loss", max(level, losses.upper)),)
        rates = sorted([*state.rates, stats.lr][-self.window :])
        level = max(losses.upper, self._alarm_level(losses, initial), math.nextafter(MIN_SHARE * initial, -math.inf))
        if stats.lr > RAISED_LR * rates[len(rates) // 2]:
            level = max(level, math.nextafter(RAISED_LOSS * initial, -math.inf))
        return (Trigger("loss", level),)

    def _alarm_level(self, losses: LossWindow, initial: float) -> float:
        """Return the loss above which it stands out and the rise is large in itself: `_z`, solved for the loss."""
        median, spread = losses.median, losses.upper - losses.minimum
        if losses.minimum > 0:
            deviation = max(losses.deviation(is_log=True), MIN_DEVIATION)
            usual, broken = (median * math.exp(min(share * deviation, 700.0)) for share in self._needed())
            rises = self.ratio * median
            if median < LEARNED_LOSS * initial:
                rises = min(rises, UNDONE_LOSS * initial)
        else:
            deviation = max(losses.deviation(is_log=False), MIN_DEVIATION * abs(median))
            usual, broken = (median + share * deviation if deviation > 0 else math.inf for share in self._needed())
            rises = losses.upper + spread
        return max(rises, min(usual, max(broken, math.nextafter(BROKEN_LOSS * initial, -math.inf))))

    def _needed(self) -> tuple[float, float]:
        """Return the z that is needed below `BROKEN_LOSS` times the initial loss, and from there on."""
        return self.zscore, BROKEN_Z * self.zscore

    def _judge(self, state: LossSpikeState, stats: StepStats, losses: LossWindow) -> Finding | None:
        loss, median = stats.loss, losses.median
        initial = sorted(state.first)[len(state.first) // 2]
        if len(losses) < min(self.warmup, self.window):
            is_spike = losses.minimum > 0 and loss > EARLY_RATIO * losses.maximum and loss > initial
            return self._finding(state, stats, losses, math.nan) if is_spike else None
        z, rises = self._z(loss, median, initial, losses)
        needed = self._needed()[0 if loss < BROKEN_LOSS * initial else 1]
        if not (z > needed and rises):
            return None
        if loss < MIN_SHARE * initial:
            return None
        rates = sorted(state.rates)
        if stats.lr > RAISED_LR * rates[len(rates) // 2] and loss < RAISED_LOSS * initial:
            return None
        return self._finding(state, stats, losses, z)

    def _z(self, loss: float, median: float, initial: float, losses: LossWindow) -> tuple[float, bool]:
        """Return (z, whether the rise is large in itself: by the ratio, or beyond the window's own range)."""
        if losses.minimum > 0:
            z = math.log(loss / median) / max(losses.deviation(is_log=True), MIN_DEVIATION)
            is_undone = loss > UNDONE_LOSS * initial and median < LEARNED_LOSS * initial
            return z, loss > self.ratio * median or is_undone
        spread = losses.upper - losses.minimum
        deviation = max(losses.deviation(is_log=False), MIN_DEVIATION * abs(median))
        return (loss - median) / deviation if deviation > 0 else 0.0, loss - losses.upper > spread

    def _finding(self, state: LossSpikeState, stats: StepStats, losses: LossWindow, z: float) -> Finding:
        loss, median = stats.loss, losses.median
        initial = sorted(state.first)[len(state.first) // 2]
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="critical" if loss > initial else "warn",
            statistic="loss",
            value=loss,
            baseline=median,
            threshold=losses.upper,
            window=self.window,
            message=(
                f"The loss jumped to {short(loss)} from a usual {short(median)} (at most {short(losses.upper)} but for "
                f"outliers)."
            ),
            advice="Look at the samples of this batch: a corrupt or mis-scaled sample is the commonest cause.",
            evidence={"z": z, "initial_loss": initial},
        )
