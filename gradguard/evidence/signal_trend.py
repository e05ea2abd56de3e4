"""Whether a signal grows or shrinks geometrically from layer to layer. Pure numbers, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


MIN_LAYERS = 3
MAX_CHANGE = 1e3  # between the first and the last layer
MIN_CORRELATION = 0.9  # of the logarithm of the level with the depth


def change_per_layer(levels: Sequence[float]) -> float | None:
    """Return the factor from layer to layer when levels run away geometrically, None when they do not.

    They do when a straight line through the logarithms fits (correlation of at least 0.9) and spans a factor of more
    than 1000 in either direction. A single odd layer, such as a small head or a quiet residual branch, is no trend.

    Args:
        levels: positive, in order of depth; those that are 0 or not finite are left out.

    Example:
        >>> round(change_per_layer([1.0, 0.1, 0.01, 0.001, 0.0001]), 3)
        0.1
        >>> change_per_layer([1.0, 1.1, 0.9, 1e-4]), change_per_layer([1.0, 0.5, 0.25])
        (None, None)
    """
    usable = [(place, math.log(level)) for place, level in enumerate(levels) if level > 0 and math.isfinite(level)]
    if len(usable) < MIN_LAYERS:
        return None
    places, logs = np.array(usable).T
    if np.ptp(logs) == 0:
        return None
    slope = float(np.polyfit(places, logs, 1)[0])
    correlation = float(np.corrcoef(places, logs)[0, 1])
    span = abs(slope) * float(np.ptp(places))
    if span <= math.log(MAX_CHANGE) or abs(correlation) < MIN_CORRELATION:
        return None
    return math.exp(slope)
