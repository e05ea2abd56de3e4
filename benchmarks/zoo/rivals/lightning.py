"""Lightning's SpikeDetection callback."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

from benchmarks.zoo.rule_set import RuleSet
from benchmarks.zoo.signals import Signals


WINDOW, WARMUP, RTOL = 10, 1, 2.0


class SpikeDetection(RuleSet):
    """A loss above the one before it and at least twice the mean of the last ten away from that mean.

    A loss that is not finite is a spike too (`finite_only=True`). A spike ends the training, so there is one alarm.

    References:
        Lightning documentation, `lightning.pytorch.callbacks.SpikeDetection`, defaults: mode="min", window=10,
        warmup=1, atol=None, rtol=2.0, finite_only=True.
    """

    name = "Lightning SpikeDetection"
    kinds: ClassVar = {
        "Spike": ("nonfinite", "loss_spike", "exploding_gradient", "divergence", "oscillation"),
    }

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._is_over = False

    def update(self, signals: Signals) -> list[str]:
        if signals.loss is None or self._is_over:
            return []
        if signals.step >= WARMUP and self._is_spike(signals.loss):
            self._is_over = True
            return ["Spike"]
        self._window.append(signals.loss)
        return []

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if not self._window or loss <= self._window[-1]:
            return False
        mean = sum(self._window) / len(self._window)
        return abs(loss - mean) >= RTOL * abs(mean)
