"""Which layers' gradients are farthest from their usual size, over the last steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Layer(NamedTuple):
    """One parameter's gradient norms over the last steps.

    Attributes:
        name: of the parameter.
        usual: median of its finite norms, NaN when there is none.
        now: at the last step, -1 when it had no gradient.
        highest: NaN or infinity when it was one of these.
        step: at which it was highest.
    """

    name: str
    usual: float
    now: float
    highest: float
    step: int

    @property
    def times(self) -> float:
        """How many times its usual norm the highest was; infinite when that was not finite."""
        if not np.isfinite(self.highest):
            return np.inf
        return self.highest / self.usual if self.usual > 0 else 1.0


def worst_layers(
    norms: npt.NDArray[np.float32], steps: npt.NDArray[np.int64], names: Sequence[str], count: int
) -> list[Layer]:
    """Return the layers that were farthest above their usual norm, worst first; non-finite ones before all others.

    Args:
        norms: (S, P) of the last steps, -1 where there was no gradient.
        steps: (S,).
        names: (P,).
        count: at most so many.
    """
    if not len(norms) or not len(names):
        return []
    present = np.where(norms < 0, np.nan, norms)
    finite = np.where(np.isfinite(present), present, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # parameters without a gradient have no median
        usual = np.nanmedian(finite, axis=0)
    # What is not finite, but not absent either, outranks every number.
    rank = np.where(np.isfinite(norms), np.where(norms < 0, -1.0, norms), np.inf)
    at, highest = rank.argmax(axis=0), rank.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        times = np.where(usual > 0, highest / usual, np.where(np.isinf(highest), np.inf, 0.0))
    order = np.argsort(-np.where(np.isnan(times), -1.0, times), kind="stable")
    return [
        Layer(
            names[column],
            float(usual[column]),
            float(norms[-1, column]),
            float(norms[at[column], column]),
            int(steps[at[column]]),
        )
        for column in order[: max(count, 0)]
        if highest[column] >= 0
    ]
