"""DeepDiagnosis."""

from __future__ import annotations

import numpy as np

from benchmarks.zoo.rule_set import BLOWN_UP, NO_PROGRESS, TOO_SMALL, RuleSet
from benchmarks.zoo.signals import Activation, Details, Signals


VANISHED = 1e-7  # mean magnitude of a gradient
DEAD = 0.7  # share of outputs that are not positive
FAR_SHARE = 0.5  # share of inputs of tanh or sigmoid beyond 5


class DeepDiagnosis(RuleSet):
    """Symptoms looked for in order; the first is the diagnosis, and the training ends there.

    * ExplodingTensor: NaN or infinity in the loss, a gradient or a weight.
    * UnchangedWeight: every weight matrix with a gradient is what it was one check ago.
    * SaturatedActivation: more than half of the inputs of a tanh or a sigmoid are at -5 or below, or at 5 or above.
    * DeadNode: at least 0.7 of the outputs of a ReLU layer are not positive.
    * LossNotDecreasing: exactly the loss of one check ago.
    * VanishingGradient: mean magnitude of a weight matrix's gradient below 1e-7.

    Accuracy that stays exactly the same is left out: every converged run would raise it. Out-of-range outputs need the
    targets. The published tool looks once an epoch; here at every tenth step, which is earlier.

    References:
        Wardat, Cruz, Le and Rajan, DeepDiagnosis: automatically diagnosing faults and recommending actionable fixes in
        deep learning programs, ICSE 2022, with its reproduction package (thresholds 0.7; -5, 5, 0.5; 1e-7).
    """

    name = "DeepDiagnosis"
    kinds = {  # noqa: RUF012
        "ExplodingTensor": BLOWN_UP,
        "UnchangedWeight": (*TOO_SMALL, "dead_units"),
        "SaturatedActivation": ("saturated_units", "bad_initialization"),
        "DeadNode": ("dead_units",),
        "LossNotDecreasing": NO_PROGRESS,
        "VanishingGradient": ("vanishing_gradient",),
    }

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._loss: float | None = None
        self._is_over = False

    def update(self, signals: Signals) -> list[str]:
        if self._is_over:
            return []
        found = self._symptom(signals)
        self._is_over = found is not None
        return [found] if found else []

    def _symptom(self, signals: Signals) -> str | None:
        if not signals.is_finite:
            return "ExplodingTensor"
        details = signals.details
        if details is None or signals.step % 10:
            return None
        before, self._loss = self._loss, signals.loss
        matrices = signals.matrices
        if matrices.any() and (details.change[matrices] == 0).all():
            return "UnchangedWeight"
        if any(_is_saturated(layer) for layer in details.activations):
            return "SaturatedActivation"
        if _has_dead_node(details):
            return "DeadNode"
        if before is not None and signals.loss == before:
            return "LossNotDecreasing"
        return "VanishingGradient" if np.any(signals.gradient_means[matrices] < VANISHED) else None


def _is_saturated(layer: Activation) -> bool:
    return layer.kind in ("tanh", "sigmoid") and layer.far_input > FAR_SHARE


def _has_dead_node(details: Details) -> bool:
    return any(layer.kind == "relu" and layer.not_positive >= DEAD for layer in details.activations)
