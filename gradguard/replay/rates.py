"""How often something happens, from how often it was seen; what chance leaves open."""

from __future__ import annotations

import math


PER = 100_000  # steps that rates are told for
CONFIDENCE = 0.95


def rate(count: int, num_steps: int) -> float:
    """Return events per 100,000 steps.

    Example:
        >>> rate(3, 12_000)
        25.0
    """
    return count * PER / num_steps


def highest_rate(count: int, num_steps: int, confidence: float = CONFIDENCE) -> float:
    """Return the events per 100,000 steps that the true rate stays below with so much confidence.

    Exact for events that come independently of each other (Poisson): the rate at which so few of them, or fewer, are
    seen with a probability of 1 - `confidence`. Without any that is about 3 over the number of steps.

    Example:
        >>> round(highest_rate(0, 100_000), 2), round(highest_rate(3, 100_000), 2)
        (3.0, 7.75)
    """
    low, high = float(count), 2.0 * count + 10.0
    while _probability_of_at_most(count, high) > 1.0 - confidence:
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _probability_of_at_most(count, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high * PER / num_steps


def _probability_of_at_most(count: int, mean: float) -> float:
    if mean <= 0.0:
        return 1.0
    logs = [index * math.log(mean) - mean - math.lgamma(index + 1) for index in range(count + 1)]
    largest = max(logs)
    return math.exp(largest) * math.fsum(math.exp(log - largest) for log in logs)
