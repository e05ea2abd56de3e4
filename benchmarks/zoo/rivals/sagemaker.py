"""The built-in rules of Amazon SageMaker Debugger for deep learning."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from benchmarks.zoo.rule_set import BLOWN_UP, TOO_SMALL, RuleSet
from benchmarks.zoo.signals import Details, Signals


VANISHED = 1e-7  # VanishingGradient.threshold
MAX_UPDATE, MIN_UPDATE, EPSILON = 10.0, 1e-8, 1e-9  # WeightUpdateRatio.large_threshold, small_threshold, epsilon
INACTIVE, LAYER = 0.01, 0.5  # threshold_inactivity 1 % and threshold_layer 50 % of DeadRelu and SaturatedActivation
NUM_UNCHANGED = 3  # UnchangedTensor.num_steps; rtol 1e-5 and atol 1e-8 are in `Details.change`
NUM_STEPS, MIN_DECREASE = 10, 0.1  # LossNotDecreasing.num_steps, diff_percent
INITIAL_STEPS, PATIENCE = 10, 5  # PoorWeightInitialization.steps, patience
MAX_VARIANCES, MIN_RANGE = 10.0, 0.001  # its threshold and distribution_range


class SageMaker(RuleSet):
    """Ten rules, each with its default parameters, on tensors saved every tenth step.

    * VanishingGradient: mean magnitude of a weight matrix's gradient below 1e-7. Biases are spared: in front of a batch
      normalisation they have no gradient in the healthiest run.
    * ExplodingTensor: NaN or infinity.
    * PoorWeightInitialization: in the first ten steps, variances of the inputs of ReLU layers ten times apart or
      gradients whose 5th and 95th percentiles are less than 0.001 apart, and a loss without a new low for 5 steps.
      The documentation does not say how the three checks are combined; either alone would alarm on most runs.
    * SaturatedActivation: half of a layer's units have fewer than 1 % of their inputs within (-9.4999, 9.4999), tanh,
      or (-23, 16.99999), sigmoid.
    * DeadRelu: half of a layer's units are active on fewer than 1 % of the samples.
    * WeightUpdateRatio: update over weight above 10 or below 1e-8, at every step.
    * AllZero: a weight matrix or a gradient with nothing but zeros.
    * UnchangedTensor: weights that `allclose` calls the same three times in a row.
    * LossNotDecreasing: a loss that fell by less than 0.1 % in ten steps.
    * Overfit needs validation losses, which these loops do not compute.

    References:
        Amazon SageMaker documentation, List of Debugger built-in rules, one page a rule. Rauschmayr et al., Amazon
        SageMaker Debugger: a system for real-time insights into machine learning model training, MLSys 2021.
    """

    name = "SageMaker Debugger"
    kinds: ClassVar = {
        "VanishingGradient": ("vanishing_gradient",),
        "ExplodingTensor": BLOWN_UP,
        "PoorWeightInitialization": ("bad_initialization",),
        "SaturatedActivation": ("saturated_units",),
        "DeadRelu": ("dead_units",),
        "WeightUpdateRatio": (*TOO_SMALL, "update_spike"),
        "AllZero": ("dead_units", "bad_initialization", "vanishing_gradient"),
        "UnchangedTensor": TOO_SMALL,
        "LossNotDecreasing": ("plateau", "divergence", "oscillation", "loss_spike"),
    }

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._loss: float | None = None  # ten steps ago
        self._lowest, self._since_lowest = np.inf, 0
        self._num_same: dict[str, int] = {}

    def update(self, signals: Signals) -> list[str]:
        is_weight = np.array([name.endswith("weight") for name in signals.names])
        ratios = signals.update_norms[is_weight] / (signals.weight_norms[is_weight] + EPSILON)
        found = {
            "ExplodingTensor": not signals.is_finite,
            "WeightUpdateRatio": bool(np.any((ratios > MAX_UPDATE) | (ratios < MIN_UPDATE))),
        }
        if signals.details is not None:
            if signals.step < INITIAL_STEPS:
                found["PoorWeightInitialization"] = self._is_poor(signals, signals.details)
            if signals.step % NUM_STEPS == 0:
                found |= self._of_tensors(signals, signals.details, is_weight)
                found["LossNotDecreasing"] = self._has_not_fallen(signals.loss)
        return [name for name, is_raised in found.items() if is_raised]

    def _of_tensors(self, signals: Signals, details: Details, is_weight: np.ndarray) -> dict[str, bool]:
        given = signals.has_gradient
        zeros = (details.zero_shares[given] == 1).any() or (details.weight_means[is_weight] == 0).any()
        for name, change in zip(signals.names, details.change, strict=True):
            self._num_same[name] = self._num_same.get(name, 1) + 1 if change <= 1 else 1
        same = [self._num_same[name] for name, is_one in zip(signals.names, is_weight, strict=True) if is_one]
        layers = details.activations
        return {
            "VanishingGradient": bool(np.any(signals.gradient_means[signals.matrices] < VANISHED)),
            "AllZero": bool(zeros),
            "UnchangedTensor": max(same, default=0) >= NUM_UNCHANGED,
            "DeadRelu": any(np.mean(layer.activity < INACTIVE) > LAYER for layer in layers if layer.kind == "relu"),
            "SaturatedActivation": any(np.mean(layer.inside < INACTIVE) > LAYER for layer in layers),
        }

    def _is_poor(self, signals: Signals, details: Details) -> bool:
        if signals.loss is not None:
            self._since_lowest = 0 if signals.loss < self._lowest else self._since_lowest + 1
            self._lowest = min(self._lowest, signals.loss)
        variances = [layer.input_std**2 for layer in details.activations if layer.kind == "relu"]
        is_uneven = len(variances) > 1 and max(variances) > MAX_VARIANCES * min(variances)
        ranges = details.gradient_ranges[signals.matrices]
        return (is_uneven or bool(np.any(ranges < MIN_RANGE))) and self._since_lowest >= PATIENCE

    def _has_not_fallen(self, loss: float | None) -> bool:
        before, self._loss = self._loss, loss
        if before is None or loss is None:
            return False
        return not before - loss >= MIN_DECREASE / 100 * abs(before)  # NaN has not fallen either
