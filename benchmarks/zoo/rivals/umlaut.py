"""UMLAUT."""

from __future__ import annotations

from typing import ClassVar

from benchmarks.zoo.recorder import EPOCH
from benchmarks.zoo.rule_set import BLOWN_UP, RuleSet
from benchmarks.zoo.signals import Signals


MAX_INPUT = 1.0
MAX_LR, MIN_LR = 0.01, 1e-7


class Umlaut(RuleSet):
    """Checks of the inputs, the loss and the learning rate at the end of an epoch; here at the first step as well.

    * InputNotNormalised: an input above 1 in magnitude. NaNLoss: a loss that is not finite.
    * HighLearningRate: above 0.01. LowLearningRate: below 1e-7.

    Left out: what reads the source of the model or needs validation losses.

    References:
        Schoop, Huang and Hartmann, UMLAUT: debugging deep learning programs using program structure and model behavior,
        CHI 2021.
    """

    name = "UMLAUT, inputs and rates"
    kinds: ClassVar = {
        "InputNotNormalised": ("bad_inputs",),
        "NaNLoss": BLOWN_UP,
        "HighLearningRate": ("oscillation", "divergence", "exploding_gradient", "update_ratio"),
        "LowLearningRate": ("update_ratio", "plateau"),
    }

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._is_broken = False

    def update(self, signals: Signals) -> list[str]:
        self._is_broken |= not signals.is_finite
        if signals.step and (signals.step + 1) % EPOCH:
            return []
        largest = None if signals.details is None else signals.details.input_max
        found = {
            "InputNotNormalised": largest is not None and not largest <= MAX_INPUT,
            "NaNLoss": self._is_broken,
            "HighLearningRate": signals.lr > MAX_LR,
            "LowLearningRate": 0 < signals.lr < MIN_LR,
        }
        return [name for name, is_raised in found.items() if is_raised]
