"""AUTOTRAINER."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from benchmarks.zoo.recorder import EPOCH
from benchmarks.zoo.rule_set import BLOWN_UP, RuleSet
from benchmarks.zoo.signals import Signals


CHECK_EVERY = 3  # epochs
MIN_RATIO, MIN_FIRST, MAX_RATIO = 1e-3, 1e-4, 70.0  # beta_1, beta_2, beta_3
ZERO_SHARE = 0.7  # gamma
SWING, SWING_SHARE = 0.03, 0.2  # zeta, eta
MIN_GAIN = 0.01  # delta
ENOUGH = 0.7  # Theta
JUDGED_FROM = 0.3  # of the budget
HUGE_LOSS = 1e5


class AutoTrainer(RuleSet):
    """Five problems, told from gradients and from the accuracies of the epochs, every third epoch.

    Gradients at the time of a check leave marks: explosion when norm(first)/norm(last) of the weight matrices is above
    70, vanishing when it is below 1e-3 with norm(first) below 1e-4, dying ReLU when at least 0.7 of all entries are
    exactly 0. NaN, infinity and losses from 1e5 on are an explosion at once. From 30 % of the budget on, a run whose
    accuracies never reached 0.7, or never gained 0.01 in one epoch, is diagnosed by its marks, dying ReLU before
    explosion before vanishing, else as slow convergence when it is the gain that was missing. A run that did is
    oscillating when in at least 0.2 of the epochs a local maximum of the accuracy is 0.03 above a local minimum. One
    diagnosis ends the training. Without accuracies only the explosion at once is left.

    References:
        Zhang, Zhai, Ma and Shen, AUTOTRAINER: an automatic DNN training problem detection and repair system, ICSE 2021,
        and the defaults of its artefact: beta 1e-3, 1e-4, 70; gamma 0.7; zeta 0.03; eta 0.2; delta 0.01; Theta 0.7.
    """

    name = "AUTOTRAINER"
    kinds: ClassVar = {
        "Explode": (*BLOWN_UP, "bad_initialization"),
        "Vanish": ("vanishing_gradient", "bad_initialization"),
        "DyingReLU": ("dead_units",),
        "Oscillating": ("oscillation",),
        "SlowConvergence": ("plateau", "collapsed_output", "update_ratio"),
    }

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._marks: set[str] = set()
        self._accuracies: list[tuple[float, float]] = []
        self._is_over = self._is_broken = False

    def update(self, signals: Signals) -> list[str]:
        self._is_broken |= not signals.is_finite or (signals.loss is not None and signals.loss >= HUGE_LOSS)
        if signals.accuracy is not None:
            self._accuracies.append(signals.accuracy)
        epoch, rest = divmod(signals.step + 1, EPOCH)
        if self._is_over or rest or epoch % CHECK_EVERY:
            return []
        self._mark(signals)
        found = "Explode" if self._is_broken else self._diagnose(signals.step)
        self._is_over = found is not None
        return [found] if found else []

    def _mark(self, signals: Signals) -> None:
        norms = signals.gradient_norms[signals.matrices]
        if len(norms) < 2 or not signals.is_finite:
            return
        ratio = norms[0] / norms[-1] if norms[-1] else np.inf if norms[0] else np.nan
        if ratio < MIN_RATIO and norms[0] < MIN_FIRST:
            self._marks.add("Vanish")
        if ratio > MAX_RATIO:
            self._marks.add("Explode")
        if signals.zero_share is not None and signals.zero_share >= ZERO_SHARE:
            self._marks.add("DyingReLU")

    def _diagnose(self, step: int) -> str | None:
        if not self._accuracies or step + 1 < JUDGED_FROM * self.budget:
            return None
        training, held = ([pair[index] for pair in self._accuracies] for index in (0, 1))
        is_slow = max(_gains(training)) < MIN_GAIN and max(_gains(held)) < MIN_GAIN
        if is_slow or min(max(training), max(held)) < ENOUGH:
            for mark in ("DyingReLU", "Explode", "Vanish"):
                if mark in self._marks:
                    return mark
            return "SlowConvergence" if is_slow else None
        return "Oscillating" if _swings(training) >= SWING_SHARE * len(training) else None


def _gains(accuracies: Sequence[float]) -> list[float]:
    return [0.0, *(later - earlier for earlier, later in pairwise(accuracies))]


def _swings(accuracies: Sequence[float]) -> int:
    """Return how many local maxima are `SWING` above the local minimum of the same rank."""
    inner = range(1, len(accuracies) - 1)
    around = [(accuracies[i - 1], accuracies[i], accuracies[i + 1]) for i in inner]
    tops = [here for before, here, after in around if here >= before and here >= after]
    lows = [here for before, here, after in around if here <= before and here <= after]
    return sum(top - low >= SWING for top, low in zip(tops, lows, strict=False))
