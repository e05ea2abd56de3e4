"""How large weights are beside what keeps a signal's level. Pure numbers, no torch."""

from __future__ import annotations

import math


MIN_RATIO, MAX_RATIO = 0.1, 5.0  # of He's standard deviation


def he_std(fan_in: int) -> float:
    """Return the standard deviation that keeps a signal's level through ReLU layers: sqrt(2 / fan_in).

    Xavier's, for tanh, is about 0.7 of it; torch's default for linear layers is 0.41 of it.
    Source: He, Zhang, Ren, Sun 2015, arXiv:1502.01852, equation 10.

    Example:
        >>> he_std(128)
        0.125
    """
    return math.sqrt(2 / max(1, fan_in))


def scale_ratio(std: float, fan_in: int) -> float:
    """Return a weight's standard deviation over He's.

    Healthy ones spread from 0.03 (hidden layers of a SIREN) over 0.08 (0.02 in a narrow transformer) to 1.4
    (orthogonal), so that a ratio alone proves nothing: what the signal does must confirm it.

    Example:
        >>> scale_ratio(1.0, 128)
        8.0
    """
    return std / he_std(fan_in)


def is_unusual(ratio: float) -> bool:
    """Return whether a ratio to He's is outside of [`MIN_RATIO`, `MAX_RATIO`]: worth a word, no proof of trouble."""
    return not MIN_RATIO <= ratio <= MAX_RATIO
