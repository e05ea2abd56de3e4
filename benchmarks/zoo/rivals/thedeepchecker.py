"""TheDeepChecker."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from benchmarks.zoo.rule_set import BLOWN_UP, RuleSet
from benchmarks.zoo.signals import Activation, Details, Signals


PERIOD, START, BUFFER = 10, 10, 10  # steps between checks, first step of those of activations, batches they look back
WINDOW = 5  # values in a row
VANISHED, EXPLODED, TOO_LARGE = 1e-6, 1e6, 1e8  # mean magnitudes: of gradients, of gradients, of weights
HALVING, DOUBLING = 0.5, 2.0  # from one value to the next, all through the window
INACTIVE = 0.05  # of the samples: the 95th percentile of a unit's |a| is below 1e-5
MOST = 0.5  # of a layer's units
SATURATED = 0.85  # rho_B
MIN_STD, MAX_STD, Z = 0.5, 2.0, 1.96  # of a layer's outputs
NEARLY_ALL = 0.95  # of the weights: below 0, or below 1e-5 in magnitude
MIN_UPDATE, MAX_UPDATE = -4.0, -1.0  # log10 of update over weight
MIN_DECREASE = 0.05  # of the loss, from one period to the next
MIN_SMOOTHNESS, NUM_SMOOTH = 0.5, 50
PATIENCE = 5


class TheDeepChecker(RuleSet):
    """The checks of its fitting phase, every tenth step.

    * NaN or infinity. Gradients: mean magnitude below 1e-6, or halving four times; above 1e6, or doubling four times.
    * Weights: 95 % negative; 95 % below 1e-5; mean magnitude above 1e8 or doubling; all of one value at the start.
    * Activations: over half of the units of a layer dead (95th percentile of |a| below 1e-5 over ten batches), or, for
      tanh and sigmoid, saturated (rho_B above 0.85; taken as the mean of |a| scaled to [-1, 1], its limit for narrow
      bins); a layer's standard deviation outside of [0.5, 2].
    * Updates: log10 of update over weight, mean of ten steps, outside of [-4, -1]; exactly 0 is an untrained layer.
    * Loss, mean of ten steps: falling by less than 5 % four times in a row (stagnation); doubling over its least value
      four times (divergence); changing direction more often than not (fluctuation).
    * Output: the same for every sample, five checks in a row.
    * Before training: inputs neither standardised nor within [-1, 1].

    Left out: checks of a single batch, of the test mode and of augmentation, which train anew; the test of initial
    weights against one scheme, which PyTorch's own default does not pass; what needs the targets.

    References:
        Ben Braiek and Khomh, Testing feedforward neural networks training programs (TheDeepChecker), TOSEM 2023, and
        its default settings as its PyTorch port publishes them.
    """

    name = "TheDeepChecker"
    kinds: ClassVar = {
        "NumericalInstability": BLOWN_UP,
        "VanishingGradient": ("vanishing_gradient",),
        "ExplodingGradient": ("exploding_gradient",),
        "WeightDivergence": ("exploding_gradient", "divergence", "update_ratio"),
        "DeadWeights": ("bad_initialization", "vanishing_gradient"),
        "NegativeWeights": ("dead_units",),
        "SymmetricWeights": ("bad_initialization",),
        "DeadLayer": ("dead_units",),
        "SaturatedLayer": ("saturated_units",),
        "UnstableActivations": ("bad_initialization",),
        "Untrained": ("frozen_parameters", "update_ratio", "dead_units"),
        "SlowUpdates": ("update_ratio", "vanishing_gradient"),
        "FastUpdates": ("update_ratio", "oscillation", "update_spike"),
        "Stagnation": ("plateau",),
        "LossDivergence": ("divergence",),
        "Fluctuation": ("oscillation",),
        "ConstantOutput": ("collapsed_output",),
        "UnscaledInput": ("bad_inputs",),
    }

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._gradients: dict[str, deque[float]] = {}
        self._weights: dict[str, deque[float]] = {}
        self._updates: dict[str, list[float]] = {}
        self._layers: dict[str, deque[Activation]] = {}
        self._step_losses: list[float] = []
        self._losses: list[float] = []
        self._num_constant = 0

    def update(self, signals: Signals) -> list[str]:
        self._remember(signals)
        if not signals.is_finite:
            return ["NumericalInstability"] if signals.step % PERIOD == 0 else []
        details = signals.details
        if details is None or signals.step % PERIOD:
            return []
        found = self._of_gradients() | self._of_weights(signals, details) | self._of_updates() | self._of_loss()
        if signals.step >= START:
            found |= self._of_layers()
        if details.output_spread is not None:
            self._num_constant = self._num_constant + 1 if details.output_spread == 0 else 0
            found["ConstantOutput"] = self._num_constant >= PATIENCE
        if signals.step == 0:
            found["UnscaledInput"] = _is_unscaled(details)
        return [name for name, is_raised in found.items() if is_raised]

    def _remember(self, signals: Signals) -> None:
        for row in np.flatnonzero(signals.matrices):
            name, weight = signals.names[row], signals.weight_norms[row]
            self._gradients.setdefault(name, deque(maxlen=WINDOW)).append(signals.gradient_means[row])
            if weight > 0:
                ratio = signals.update_norms[row] / weight
                self._updates.setdefault(name, []).append(math.log10(ratio) if ratio > 0 else 0.0)
        if signals.loss is not None:
            self._step_losses.append(signals.loss)
        if signals.details is not None:
            for layer in signals.details.activations:
                self._layers.setdefault(layer.name, deque(maxlen=BUFFER)).append(layer)

    def _of_gradients(self) -> dict[str, bool]:
        series = self._gradients.values()
        return {
            "VanishingGradient": any(values[-1] < VANISHED or _all(values, most=HALVING) for values in series),
            "ExplodingGradient": any(values[-1] > EXPLODED or _all(values, least=DOUBLING) for values in series),
        }

    def _of_weights(self, signals: Signals, details: Details) -> dict[str, bool]:
        rows = np.flatnonzero(signals.matrices)
        for row in rows:
            values = self._weights.setdefault(signals.names[row], deque(maxlen=WINDOW))
            values.append(details.weight_means[row])
        return {
            "WeightDivergence": any(v[-1] > TOO_LARGE or _all(v, least=DOUBLING) for v in self._weights.values()),
            "DeadWeights": bool(np.any(details.small_shares[rows] > NEARLY_ALL)),
            "NegativeWeights": bool(np.any(details.negative_shares[rows] > NEARLY_ALL)),
            "SymmetricWeights": signals.step == 0 and bool(np.any(details.weight_stds[rows] == 0)),
        }

    def _of_updates(self) -> dict[str, bool]:
        means = [float(np.mean(values)) for values in self._updates.values() if len(values) >= PERIOD]
        if means:
            self._updates.clear()
        return {
            "Untrained": any(mean == 0 for mean in means),
            "SlowUpdates": any(mean < MIN_UPDATE for mean in means),
            "FastUpdates": any(mean > MAX_UPDATE for mean in means if mean != 0),
        }

    def _of_layers(self) -> dict[str, bool]:
        layers = self._layers.values()
        bounded = [buffer for buffer in layers if buffer[-1].kind in ("tanh", "sigmoid")]
        return {
            "DeadLayer": any(
                np.mean(_mean(buffer, "activity") < INACTIVE) > MOST for buffer in layers if buffer not in bounded
            ),
            "SaturatedLayer": any(np.mean(_mean(buffer, "extremity") > SATURATED) > MOST for buffer in bounded),
            "UnstableActivations": any(map(_is_unstable, layers)),
        }

    def _of_loss(self) -> dict[str, bool]:
        if not self._step_losses:
            return {}
        self._losses.append(float(np.mean(self._step_losses)))
        self._step_losses = []
        last = np.array(self._losses[-WINDOW:])
        falls = (last[:-1] - last[1:]) / np.where(last[:-1] == 0, 1.0, np.abs(last[:-1]))
        directions = np.sign(np.diff(self._losses[-NUM_SMOOTH:]))
        smoothness = np.mean(directions[1:] == directions[:-1]) if len(directions) >= WINDOW else 1.0
        least = min(self._losses)
        return {
            "Stagnation": len(last) == WINDOW and bool((falls < MIN_DECREASE).all()),
            "LossDivergence": least > 0 and _all(list(last / least), least=DOUBLING),
            "Fluctuation": bool(smoothness < MIN_SMOOTHNESS),
        }


def _all(values: Sequence[float] | deque[float], least: float = 0.0, most: float = math.inf) -> bool:
    """Return whether a full window changed by factors within the bounds from each value to the next."""
    pairs = list(zip(list(values)[:-1], list(values)[1:], strict=True))
    return len(values) == WINDOW and all(before > 0 and least <= after / before <= most for before, after in pairs)


def _mean(buffer: deque[Activation], field: str) -> np.ndarray:
    return np.mean([getattr(layer, field) for layer in buffer], axis=0)


def _is_unstable(buffer: deque[Activation]) -> bool:
    """Return whether a standard deviation is out of its range by more than chance explains."""
    std = math.sqrt(np.mean([layer.std**2 for layer in buffer]))
    count = sum(layer.num_rows * len(layer.activity) for layer in buffer)
    margin = math.exp(Z / math.sqrt(2 * max(1, count - 1)))
    return std * margin < MIN_STD or std > MAX_STD * margin


def _is_unscaled(details: Details) -> bool:
    if details.input_max is None or details.input_mean is None or details.input_std is None:
        return False
    is_standard = abs(details.input_mean) < 0.25 and 0.75 < details.input_std < 1.25
    return not is_standard and details.input_max > 1
