"""What one step measured, as a structure of arrays over the optimizer's P parameter tensors.

Shape legend used throughout the package: P parameter tensors; row 0 of an array of P + 1 rows is the global norm and
row i + 1 is parameter i.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt


if TYPE_CHECKING:
    from gradguard.evidence.origin import Origin
    from gradguard.evidence.probe_stats import Activations, Updates
    from gradguard.evidence.running import LossWindow, NormWindow
    from gradguard.limits.tracked import TrackedLimit, Tracker

FloatArray = npt.NDArray[np.float32]
ABSENT = -1.0  # norm of a parameter that has no gradient at this step


class ParameterTable:
    """The static facts about the P parameter tensors, in the optimizer's order.

    Args:
        names: fully qualified names.
        shapes: shape of each.
        dtypes: dtype of each, as "float32".
        groups: index of the param group that each belongs to.
    """

    def __init__(self, names: list[str], shapes: list[tuple[int, ...]], dtypes: list[str], groups: list[int]) -> None:
        self.names = names
        self.shapes = shapes
        self.dtypes = dtypes
        self.groups = groups
        self.is_matrix = np.array([len(shape) >= 2 for shape in shapes], dtype=bool)

    def __len__(self) -> int:
        return len(self.names)


class StepStats:
    """The measurements of one step; one instance is reused for every step.

    Attributes:
        step: optimizer step, 0-based.
        loss: mean of the losses observed for this step; NaN when there were none or one of them is NaN.
        has_loss: whether a loss was observed.
        lr: learning rate of the first param group, without the guard's factor.
        levels: (P + 1,) float32, row 0 the global L2 norm of the gradient, row i + 1 that of parameter i; `ABSENT`
            where a parameter has no gradient. A norm beyond float32 whose entries are all finite is stored as the
            largest float32.
        norms: (P,) view of `levels[1:]`.
        global_norm: row 0 in float64.
        finite: every gradient entry is finite.
        overflowed: rows of parameters whose norm overflowed their own dtype although every entry is finite.
        is_plain: every parameter has a gradient, and every norm is finite and > 0.
        exact_norms: {row: norm} where float32 cannot hold the norm.
        nonfinite: {row: (NaN entries, infinite entries)} of parameters with non-finite gradients.
        is_late: the gradients were gone when these numbers arrived: in `nonfinite` 1 stands for "some", and an infinite
            entry may be one whose square does not fit float32.
        weight_norms: (P,) float32 L2 norms of the weights, sampled; NaN before the first sample.
        weight_spreads: (P,) float32 in [0, 1], how far the rows of each weight (its units) are from their mean at the
            start, over the size of the entries; NaN for weights of zero and parameters of fewer than two dimensions.
        sgd_reach: norm of all weights at the last sample when the optimizer is SGD, whose update is lr times the
            gradient; infinite for optimizers that normalise the gradient, and while the weights are zero.
        shrinkage: largest share of a weight that weight decay takes off per step at the last sample; 0 when unknown.
        variance_growth: of the running variance that grew most since the last accepted step, how many times over it
            did; 1 while that is usual.
        grown_variance: its name, "" while that is usual.
        bad_state: names of parameters and buffers that were found non-finite at this step, or with an entry out of all
            proportion that makes the step so.
        origin: where NaN or infinity came into a step that is not finite; None for others, and where nobody looked.
        is_stale: gradients were not reset since the last step.
        num_microbatches: backward passes that were accumulated for this step, where they are counted, else 0.
        dropped_microbatches: those of them that were taken back, as their gradients were not finite.
        loss_scale: GradScaler's scale, or 1.
        scaler_skips: GradScaler's skips since the last applied step, 0 before the first one.
        found_inf: GradScaler will skip this step.
        bad_ranks: ranks that observed a non-finite loss, in distributed training.
        first_loss: first finite loss of an accepted step, or NaN.
        initial_loss: median of the first 5 finite losses of accepted steps (of fewer while there are fewer), or NaN.
        num_losses: finite losses of accepted steps before this one.
        activations: what the probe saw in the forward passes of this step; None on most steps.
        updates: what the probe saw the step before do; None on most steps.
        windows: {window size: rolling statistics of `levels` before this step}.
        losses: {window size: rolling statistics of the loss before this step}.
        trackers: {limit: what it remembers of the steps before this one}.
    """

    __slots__ = (
        "activations",
        "bad_ranks",
        "bad_state",
        "dropped_microbatches",
        "exact_norms",
        "finite",
        "first_loss",
        "found_inf",
        "global_norm",
        "grown_variance",
        "has_loss",
        "initial_loss",
        "is_late",
        "is_plain",
        "is_stale",
        "levels",
        "loss",
        "loss_scale",
        "losses",
        "lr",
        "nonfinite",
        "norms",
        "num_losses",
        "num_microbatches",
        "origin",
        "overflowed",
        "scaler_skips",
        "sgd_reach",
        "shrinkage",
        "step",
        "trackers",
        "updates",
        "variance_growth",
        "weight_norms",
        "weight_spreads",
        "windows",
    )

    def measured(self) -> tuple[FloatArray, float, bool]:
        """Return a copy of what remedies write to when they note the norms that they left."""
        return self.levels.copy(), self.global_norm, self.finite

    def put_back(self, measured: tuple[FloatArray, float, bool]) -> None:
        """Put back what `measured` returned."""
        self.levels[:], self.global_norm, self.finite = measured

    def is_quiet(self) -> bool:
        """Return whether only the size of norms and loss can be wrong: fresh finite gradients, no scale, no probe."""
        return (
            self.finite
            and not self.overflowed
            and not self.bad_state
            and not self.grown_variance
            and not self.dropped_microbatches
            and not self.is_stale
            and not self.found_inf
            and self.loss_scale == 1.0
            and self.activations is None
            and self.updates is None
            and (not self.has_loss or isfinite(self.loss))
        )

    def norm(self, row: int) -> float:
        """Return the gradient norm of one parameter, exact beyond float32."""
        return self.exact_norms.get(row) or float(self.norms[row])

    def __init__(self, num_parameters: int) -> None:
        self.step = 0
        self.loss = float("nan")
        self.has_loss = False
        self.lr = 0.0
        self.levels: FloatArray = np.full(num_parameters + 1, ABSENT, dtype=np.float32)
        self.norms: FloatArray = self.levels[1:]
        self.global_norm = 0.0
        self.finite = True
        self.overflowed: tuple[int, ...] = ()
        self.exact_norms: dict[int, float] = {}
        self.nonfinite: dict[int, tuple[int, int]] = {}
        self.weight_norms: FloatArray = np.full(num_parameters, np.nan, dtype=np.float32)
        self.weight_spreads: FloatArray = np.full(num_parameters, np.nan, dtype=np.float32)
        self.sgd_reach = float("inf")
        self.shrinkage = 0.0
        self.variance_growth = 1.0
        self.grown_variance = ""
        self.bad_state: tuple[str, ...] = ()
        self.origin: Origin | None = None
        self.is_late = False
        self.is_plain = False
        self.is_stale = False
        self.num_microbatches = 0
        self.dropped_microbatches = 0
        self.loss_scale = 1.0
        self.scaler_skips = 0
        self.found_inf = False
        self.bad_ranks: tuple[int, ...] = ()
        self.first_loss = float("nan")
        self.initial_loss = float("nan")
        self.num_losses = 0
        self.activations: Activations | None = None
        self.updates: Updates | None = None
        self.windows: dict[int, NormWindow] = {}
        self.losses: dict[int, LossWindow] = {}
        self.trackers: dict[TrackedLimit, Tracker] = {}
