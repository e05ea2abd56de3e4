"""How far each statistic that a diagnosis judges went in one run, whether or not anything was said about it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.zoo.signals import Activation, Floats, Signals
from gradguard.contracts import DIAGNOSES


WINDOW, WARMUP, EARLY = 50, 20, 5
CHECKS, SUSTAINED = 5, 3  # checks whose median counts; checks in a row that all have to go that far
NUM_ROWS = 256  # samples on which a dead unit is silent
RECENT, LONG = 10, 100  # steps of a loss that counts as the present one; of its scatter
MIN_DEVIATION = 0.1  # of ln(norm)


@dataclass(frozen=True)
class Statistic:
    """One number that a diagnosis judges.

    Args:
        title: for pictures.
        diagnosis: that judges it.
        side: whether large or small values are alarming; the extreme of a run is the most alarming one.
        threshold: from which it is alarming: the default of the diagnosis where it has an option for that.
        scale: of an axis that shows it.
    """

    title: str
    diagnosis: str
    side: Literal["high", "low"]
    threshold: float
    scale: Literal["log", "linear"] = "log"

    def is_beyond(self, value: float) -> bool:
        """Return whether a value is alarming."""
        return value > self.threshold if self.side == "high" else value < self.threshold


def _default(diagnosis: str, option: str) -> float:
    return float(DIAGNOSES.get(diagnosis).model_fields[option].default)


STATISTICS = {
    name: Statistic(title, diagnosis, side, _default(diagnosis, at) if isinstance(at, str) else at, scale)  # type: ignore[arg-type]
    for name, title, diagnosis, side, at, scale in (
        ("zscore", "z of ln(gradient norm), twice in 3 steps", "exploding_gradient", "high", "zscore", "log"),
        ("ratio", "gradient norm / rolling median, twice in 3 steps", "exploding_gradient", "high", "ratio", "log"),
        ("loss", "median of 10 losses / first losses", "divergence", "high", "ratio", "log"),
        ("spread", "S: spread of |g|/|w| over the layers", "vanishing_gradient", "high", "max_spread", "log"),
        (
            "first_to_last",
            "rho: |g| of the first / last layer",
            "vanishing_gradient",
            "low",
            "min_first_to_last",
            "log",
        ),
        ("dead", "share of dead units, worst layer", "dead_units", "high", "share", "linear"),
        ("saturated", "share of saturated outputs, worst layer", "saturated_units", "high", "share", "linear"),
        ("small_update", "|update|/|w| at full rate, median layer, lowest", "update_ratio", "low", "smallest", "log"),
        ("large_update", "|update|/|w|, median layer, highest", "update_ratio", "high", "largest", "log"),
        ("update_zscore", "z of ln(update norm), twice in 3 steps", "update_spike", "high", "zscore", "log"),
        ("scatter", "scatter of 100 losses (MAD) / first losses", "oscillation", "high", "noise", "log"),
        ("best_loss", "lowest median of 50 losses / first losses", "plateau", "high", 0.95, "linear"),
        ("output_spread", "spread of the outputs / at the start", "collapsed_output", "low", "share", "log"),
        ("input_std", "spread of the inputs, too large", "bad_inputs", "high", "max_std", "log"),
        ("small_input_std", "spread of the inputs, too small", "bad_inputs", "low", "min_std", "log"),
    )
}


class Extremes:
    """Follows one optimizer's signals; `values` holds the extremes so far, by the names of `STATISTICS`."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._norms = _Level()
        self._updates = _Level()
        self._losses: deque[float] = deque(maxlen=LONG)
        self._first: list[float] = []
        self._flows: dict[str, deque[float]] = {name: deque(maxlen=CHECKS) for name in ("spread", "first_to_last")}
        self._shares: dict[tuple[str, str], deque[float]] = {}
        self._quiet: dict[str, tuple[Floats, int]] = {}
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._top_lr = 0.0
        self._start_spread: float | None = None

    def update(self, signals: Signals) -> None:
        """Take the signals of the next step; what is not finite is left out."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self._follow_levels(signals)
            self._follow_loss(signals)
            self._follow_updates(signals)
            if signals.step % 10 == 0:
                self._follow_flow(signals)
                self._follow_details(signals)

    def _keep(self, name: str, value: float) -> None:
        if np.isfinite(value):
            worst = max if STATISTICS[name].side == "high" else min
            self.values[name] = worst(self.values.get(name, value), float(value))

    def _follow_levels(self, signals: Signals) -> None:
        z, ratio = self._norms.judge(float(np.linalg.norm(signals.gradient_norms)))
        self._keep("zscore", z)
        self._keep("ratio", ratio)
        self._keep("update_zscore", self._updates.judge(float(np.linalg.norm(signals.update_norms)))[0])

    def _follow_loss(self, signals: Signals) -> None:
        if signals.loss is None or not np.isfinite(signals.loss):
            return
        self._losses.append(signals.loss)
        if len(self._first) < EARLY:
            self._first.append(signals.loss)
        start = float(np.median(self._first))
        if start <= 0:
            return
        recent = list(self._losses)
        if signals.step >= RECENT:
            self._keep("loss", float(np.median(recent[-RECENT:])) / start)
        if len(recent) >= WINDOW:
            low = float(np.median(recent[-WINDOW:])) / start
            self.values["best_loss"] = min(
                self.values.get("best_loss", low), low
            )  # the best, although high is alarming
        if len(recent) == LONG:
            steps = np.abs(np.diff(recent)) / np.sqrt(2)  # of noise about a slope, without the slope
            self._keep("scatter", float(np.median(steps)) / start)

    def _follow_updates(self, signals: Signals) -> None:
        self._top_lr = max(self._top_lr, signals.lr)
        rows = signals.matrices & (signals.weight_norms > 0)
        if signals.step < WARMUP or not rows.any() or not signals.lr > 0:
            return
        self._ratios.append(float(np.median(signals.update_norms[rows] / signals.weight_norms[rows])))
        if len(self._ratios) >= RECENT:
            usual = float(np.median(list(self._ratios)[-RECENT:]))
            self._keep("large_update", usual)
            self._keep("small_update", usual * self._top_lr / signals.lr)

    def _follow_flow(self, signals: Signals) -> None:
        rows = signals.matrices & (signals.weight_norms > 0)
        norms, weights = signals.gradient_norms[rows], signals.weight_norms[rows]
        if len(norms) < 3 or not signals.is_finite or norms[-1] == 0 or self._is_learning():
            return
        relative = norms / weights
        floor = np.finfo(np.float64).tiny
        self._flows["spread"].append(float(relative.max() / max(relative.min(), floor)))
        self._flows["first_to_last"].append(float(norms[0] / norms[-1]))
        for name, values in self._flows.items():
            if len(values) == CHECKS:
                self._keep(name, float(np.median(values)))

    def _is_learning(self) -> bool:
        """Whether the loss is below half of where it began: converged nets have uneven gradients for other reasons."""
        return bool(self._first) and np.median(list(self._losses)[-RECENT:]) < np.median(self._first) / 2

    def _follow_details(self, signals: Signals) -> None:
        details = signals.details
        if details is None:
            return
        for layer in details.activations:
            if layer.kind == "relu":
                self._follow_quiet(layer)
            elif layer.kind in ("tanh", "sigmoid"):
                self._sustain("saturated", layer.name, layer.flat)
        if details.output_spread is not None:
            if self._start_spread is None:
                self._start_spread = details.output_spread
            self._keep("output_spread", np.divide(details.output_spread, self._start_spread))
        if details.input_std is not None and signals.step == 0:
            self._keep("input_std", details.input_std)
            self._keep("small_input_std", details.input_std)

    def _follow_quiet(self, layer: Activation) -> None:
        active, rows = self._quiet.get(layer.name, (np.zeros_like(layer.activity), 0))
        active, rows = active + layer.activity * layer.num_rows, rows + layer.num_rows
        if rows >= NUM_ROWS:
            self._sustain("dead", layer.name, float(np.mean(active == 0)))
            active, rows = np.zeros_like(active), 0
        self._quiet[layer.name] = active, rows

    def _sustain(self, name: str, layer: str, share: float) -> None:
        shares = self._shares.setdefault((name, layer), deque(maxlen=SUSTAINED))
        shares.append(share)
        if len(shares) == SUSTAINED:
            self._keep(name, min(shares))


class _Level:
    """The recent level of a norm."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._last: deque[tuple[float, float]] = deque(maxlen=SUSTAINED)

    def judge(self, norm: float) -> tuple[float, float]:
        """Return the second largest z and ratio of the last three steps, NaN before the window is warm."""
        if not norm > 0 or not np.isfinite(norm):
            return np.nan, np.nan
        value, found = float(np.log(norm)), (np.nan, np.nan)
        if len(self._window) >= WARMUP:
            middle = float(np.median(self._window))
            deviation = 1.4826 * float(np.median(np.abs(np.array(self._window) - middle)))
            self._last.append(((value - middle) / max(deviation, MIN_DEVIATION), float(np.exp(value - middle))))
            if len(self._last) > 1:
                found = tuple(sorted(part)[-2] for part in zip(*self._last, strict=True))  # type: ignore[assignment]
        self._window.append(value)
        return found
