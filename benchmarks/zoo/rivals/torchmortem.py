"""torchmortem."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from benchmarks.zoo.rule_set import NO_PROGRESS, TOO_SMALL, RuleSet
from benchmarks.zoo.signals import Signals


WEAKER, HUGE, STALLED, STALLED_SHARE = 100.0, 1000.0, 1e-8, 0.3  # gradients
MOST, SUSTAINED = 0.5, 0.5  # of a layer's outputs, of the checks
MIN_UPDATE, MAX_UPDATE = 1e-5, 1e-1
GROWN, UNMOVED, UNEVEN = 10.0, 1e-4, 100.0  # norms of weights
TAIL, RISING, RISEN = 20, 0.8, 1.5  # divergence of the loss
FLAT_STEPS, FLAT = 20, 1e-5  # plateau of the loss
SMOOTHING = 0.1  # weight of a new loss in the running mean; the published value was not at hand
NOTHING = 1e-30


class TorchMortem(RuleSet):
    """An autopsy: everything is judged at the end of the run, most of it on the second half.

    * VanishingGradient: mean gradient norm of the last weight matrix 100 times that of the first.
    * ExplodingGradient: a norm above 1000 at any time. GradientStall: a norm below 1e-8 in 30 % of the steps.
    * DeadUnits: over half of a layer's outputs, not units, below 1e-6 in magnitude in half of the checks.
    * Saturation: likewise above 0.95, for tanh and sigmoid.
    * UpdateRatio: median of update over weight below 1e-5 or above 0.1.
    * WeightNorm: grown tenfold, changed by less than 1e-4, or 100 times apart between matrices.
    * Divergence: the smoothed loss rises in 80 % of the last 20 steps, and by half. Plateau: it stays within 1e-5 of
      itself for 20 steps.

    Left out: rank, noise and curvature, and what it calls mere information (catapult, edge of stability).

    References:
        torchmortem, documentation and published defaults of its detectors.
    """

    name = "torchmortem"
    kinds: ClassVar = {
        "VanishingGradient": ("vanishing_gradient",),
        "ExplodingGradient": ("exploding_gradient",),
        "GradientStall": ("vanishing_gradient", "dead_units"),
        "DeadUnits": ("dead_units",),
        "Saturation": ("saturated_units",),
        "UpdateRatio": (*TOO_SMALL, "oscillation"),
        "WeightNorm": ("update_ratio", "divergence", "bad_initialization"),
        "Divergence": ("divergence",),
        "Plateau": NO_PROGRESS,
    }

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._gradients: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        self._updates: list[np.ndarray] = []
        self._layers: dict[str, list[tuple[float, float]]] = {}
        self._losses: list[float] = []

    def update(self, signals: Signals) -> list[str]:
        rows = np.flatnonzero(signals.is_matrix)
        self._gradients.append(signals.gradient_norms[rows])
        self._weights.append(signals.weight_norms[rows])
        safe = np.where(signals.weight_norms[rows] > NOTHING, signals.weight_norms[rows], np.inf)
        self._updates.append(signals.update_norms[rows] / safe)
        if signals.loss is not None:
            last = self._losses[-1] if self._losses else signals.loss
            self._losses.append(last + SMOOTHING * (signals.loss - last))
        if signals.details is not None and signals.step % 10 == 0:
            for layer in signals.details.activations:
                self._layers.setdefault(layer.name, []).append((layer.near_zero, layer.near_limit))
        return self._autopsy() if signals.step == self.budget - 1 else []

    def _autopsy(self) -> list[str]:
        count = len(self._gradients[-1])  # parameters may have joined meanwhile
        gradients, weights, updates = (
            np.stack([row for row in rows if len(row) == count])
            for rows in (self._gradients, self._weights, self._updates)
        )
        dead, saturated = (
            any(_is_sustained([pair[index] for pair in pairs]) for pairs in self._layers.values()) for index in (0, 1)
        )
        found = {
            "VanishingGradient": _vanishes(gradients),
            "ExplodingGradient": bool((gradients > HUGE).any()),
            "GradientStall": bool((np.mean(gradients < STALLED, axis=0) >= STALLED_SHARE).any()),
            "DeadUnits": dead,
            "Saturation": saturated,
            "UpdateRatio": _is_off(updates[1:]),
            "WeightNorm": _is_unhealthy(weights),
            "Divergence": self._diverges(),
            "Plateau": self._is_flat(),
        }
        return [name for name, is_raised in found.items() if is_raised]

    def _diverges(self) -> bool:
        tail = np.array(self._losses[-min(TAIL, len(self._losses) // 2) :])
        if len(self._losses) < 10 or len(tail) < 5:
            return False
        return bool(np.mean(np.diff(tail) > 0) >= RISING and (tail[0] <= NOTHING or tail[-1] >= RISEN * tail[0]))

    def _is_flat(self) -> bool:
        count = len(self._losses)
        for start in range(count // 2, count - FLAT_STEPS, FLAT_STEPS):
            part = np.array(self._losses[start : start + FLAT_STEPS])
            if part.mean() >= NOTHING and np.ptp(part) < FLAT * part.mean():
                return True
        return False


def _is_sustained(shares: list[float]) -> bool:
    late = np.array(shares[len(shares) // 2 :])
    return bool(np.mean(late > MOST) >= SUSTAINED)


def _vanishes(gradients: np.ndarray) -> bool:
    means = gradients[len(gradients) // 2 :].mean(axis=0)
    if len(means) < 2:
        return False
    return bool(means[0] < NOTHING or (means[-1] >= NOTHING and means[-1] / means[0] >= WEAKER))


def _is_off(updates: np.ndarray) -> bool:
    late = updates[len(updates) // 2 :]
    medians = [float(np.median(column[column > 0])) for column in late.T if (column > 0).any()]
    return any(median < MIN_UPDATE or median > MAX_UPDATE for median in medians)


def _is_unhealthy(weights: np.ndarray) -> bool:
    first, last = weights[0], weights[-1]
    some = first > NOTHING
    growth = last[some] / first[some]
    there = last[last > NOTHING]
    is_uneven = len(there) > 1 and there.max() / there.min() >= UNEVEN
    return bool(is_uneven or (growth > GROWN).any() or (len(weights) >= 4 and (abs(growth - 1) < UNMOVED).any()))
