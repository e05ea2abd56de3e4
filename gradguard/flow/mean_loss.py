"""One loss for one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def mean_loss(losses: Sequence[Any]) -> float:
    """Return the mean of the losses that were observed for one step; NaN or infinite when one of them is.

    Args:
        losses: at least one float or one-element tensor.

    Example:
        >>> mean_loss([1.0, 2.0])
        1.5
    """
    if len(losses) == 1:
        return float(losses[0])
    return sum([float(loss) / len(losses) for loss in losses])
