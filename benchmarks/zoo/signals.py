"""What the rule sets are given to judge: the signals of one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt


Floats = npt.NDArray[np.float64]
Kind = Literal["relu", "tanh", "sigmoid", "other"]


@dataclass(frozen=True)
class Activation:
    """The outputs a, and inputs z, of one activation layer on one batch; a row is a sample, or a place in one.

    Args:
        name: of the module.
        kind: of the function.
        num_rows: rows of the batch.
        activity: (units,) share of rows with |a| > 1e-5, per unit.
        extremity: (units,) mean over the rows of |a| scaled to [-1, 1]; 0 where a has no bounds.
        inside: (units,) share of rows with -9.4999 < z < 9.4999 (tanh) or -23 < z < 16.99999 (sigmoid); else 1.
        not_positive: share of all a <= 0.
        near_zero: share of all |a| < 1e-6.
        near_limit: share of all |a| > 0.95 (tanh, sigmoid); else 0.
        far_input: share of all |z| >= 5.
        flat: share of all |a| > 0.99 (tanh) or a outside of (0.0067, 0.9933) (sigmoid); else 0.
        std: standard deviation of all a.
        input_std: standard deviation of all z.
    """

    name: str
    kind: Kind
    num_rows: int
    activity: Floats
    extremity: Floats
    inside: Floats
    not_positive: float
    near_zero: float
    near_limit: float
    far_input: float
    flat: float
    std: float
    input_std: float


@dataclass(frozen=True)
class Details:
    """What costs too much to take at every step; arrays have one entry a parameter tensor (P,).

    Args:
        zero_shares: share of gradient entries that are exactly 0.
        gradient_ranges: 95th less 5th percentile of the gradient's entries.
        weight_means: mean magnitude of the weights before the step.
        weight_stds: their standard deviation.
        small_shares: share of weights below 1e-5 in magnitude.
        negative_shares: share of weights below 0.
        change: largest |w - w'| / (1e-8 + 1e-5 |w'|) against the details before; at most 1 when `allclose` holds,
            infinite for the first.
        activations: the activation layers that ran, in the model's order.
        output_spread: standard deviation over the rows of the model's outputs, mean over the outputs; None unless seen.
        input_mean: of the model's input; None unless it is a tensor of floats.
        input_std: its standard deviation; None too when it has few entries.
        input_max: its largest magnitude.
    """

    zero_shares: Floats
    gradient_ranges: Floats
    weight_means: Floats
    weight_stds: Floats
    small_shares: Floats
    negative_shares: Floats
    change: Floats
    activations: tuple[Activation, ...] = ()
    output_spread: float | None = None
    input_mean: float | None = None
    input_std: float | None = None
    input_max: float | None = None


@dataclass(frozen=True)
class Signals:
    """One optimizer step; arrays have one entry a parameter tensor that can be trained (P,).

    Args:
        step: from 0.
        loss: that was observed; None when none was.
        lr: largest of the param groups.
        names: of the parameters, in the model's order.
        is_matrix: whether a tensor has two dimensions or more.
        has_gradient: whether it had a gradient; without one its gradient entries below are 0.
        gradient_norms: Euclidean norms of the gradients.
        gradient_means: mean magnitudes of the gradients' entries.
        weight_norms: norms of the weights before the step.
        update_norms: norms of what the step changed.
        zero_share: share of all gradient entries that are exactly 0, once in `EPOCH` steps; else None.
        accuracy: on training and on held-out samples, at the same steps of classifiers; else None.
        details: every `STRIDE` steps and at each of the first `STRIDE`; else None.
    """

    step: int
    loss: float | None
    lr: float
    names: tuple[str, ...]
    is_matrix: npt.NDArray[np.bool_]
    has_gradient: npt.NDArray[np.bool_]
    gradient_norms: Floats
    gradient_means: Floats
    weight_norms: Floats
    update_norms: Floats
    zero_share: float | None = None
    accuracy: tuple[float, float] | None = None
    details: Details | None = None

    @property
    def matrices(self) -> npt.NDArray[np.bool_]:
        """(P,) which tensors are weight matrices with a gradient."""
        return self.is_matrix & self.has_gradient

    @property
    def is_finite(self) -> bool:
        """Whether the loss and all norms are finite."""
        norms = (self.gradient_norms, self.weight_norms, self.update_norms)
        return (self.loss is None or bool(np.isfinite(self.loss))) and all(np.isfinite(part).all() for part in norms)
