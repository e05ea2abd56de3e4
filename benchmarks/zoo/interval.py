"""A rate with its uncertainty."""

from __future__ import annotations

import math


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a rate, 95 % by default; (0, 1) when nothing was counted.

    References:
        E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.

    Example:
        >>> [round(bound, 3) for bound in wilson(0, 40)], [round(bound, 3) for bound in wilson(80, 84)]
        ([0.0, 0.088], [0.884, 0.981])
    """
    if total == 0:
        return 0.0, 1.0
    rate = hits / total
    spread = z * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    centre, scale = rate + z * z / (2 * total), 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def told(hits: int, total: int) -> str:
    """Return a rate in words.

    Example:
        >>> told(80, 84)
        '80 of 84 = 95.2 % (88.4 to 98.1)'
    """
    low, high = wilson(hits, total)
    return f"{hits} of {total} = {100 * hits / max(1, total):.1f} % ({100 * low:.1f} to {100 * high:.1f})"
