"""The rules of SageMaker Debugger without the two that alarm on almost every run."""

from __future__ import annotations

from typing import ClassVar

from benchmarks.zoo.rivals.sagemaker import SageMaker
from benchmarks.zoo.signals import Signals


NOISY = ("LossNotDecreasing", "PoorWeightInitialization")


class QuietSageMaker(SageMaker):
    """As a user would leave them on after a first try: without LossNotDecreasing and PoorWeightInitialization.

    References:
        As for `SageMaker`. The choice is ours, so that what the other rules are worth can be seen.
    """

    name = "SageMaker, two rules off"
    kinds: ClassVar = {name: kinds for name, kinds in SageMaker.kinds.items() if name not in NOISY}

    def update(self, signals: Signals) -> list[str]:
        return [name for name in super().update(signals) if name not in NOISY]
