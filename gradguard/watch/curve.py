"""A curve of the last steps as blocks of a terminal: pure text, one character a column."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


BLOCKS = " ▁▂▃▄▅▆▇█"  # what fills a character from below, by eighths
ASCII = " ..::||##"  # where the terminal has none of these
LOG_FROM = 10.0  # ratio of the highest to the lowest value from which the scale is logarithmic


@dataclass(frozen=True)
class Curve:
    """Values over steps, as drawn.

    Attributes:
        lines: from the top, each of `width` characters.
        nonfinite: columns with a step whose value is NaN or infinite.
        low: value at the bottom; NaN when none is finite.
        high: value at the top.
        is_log: heights are logarithms.
    """

    lines: tuple[str, ...]
    nonfinite: tuple[int, ...]
    low: float
    high: float
    is_log: bool


def columns_of(count: int, width: int) -> npt.NDArray[np.int64]:
    """Return the column in which each of `count` steps is drawn: (count,) in [0, width)."""
    return np.arange(count) * min(width, max(1, count)) // max(1, count)


def draw(
    values: npt.NDArray[np.float64], width: int, height: int = 1, is_log: bool | None = None, ramp: str = BLOCKS
) -> Curve:
    """Draw values; a column shows the highest of its steps, so that no spike is lost.

    Args:
        values: (S,), S >= 0; what is NaN or infinite is drawn as a full column, and told.
        width: columns, >= 1; fewer are filled when there are fewer steps.
        height: lines, >= 1.
        is_log: draw logarithms; None: when the values are positive and span a factor of `LOG_FROM`.
        ramp: nine characters from empty to full.

    Example:
        >>> draw(np.array([1.0, 2.0, 8.0, 4.0]), 4).lines
        ('▁▂█▄',)
    """
    column = columns_of(len(values), width)
    finite = np.isfinite(values)
    highest = np.full(width, -np.inf)
    np.maximum.at(highest, column[finite], values[finite])
    nonfinite = np.unique(column[~finite])
    shown = highest[np.isfinite(highest)]
    if not len(shown):
        return Curve((" " * width,) * height, tuple(map(int, nonfinite)), math.nan, math.nan, is_log=False)
    now = values[finite][-1]  # may lie below the highest of its column: it is shown beside the bounds
    low, high = float(min(shown.min(), now)), float(shown.max())
    if is_log is None:
        is_log = low > 0 and high >= LOG_FROM * low
    if is_log:  # a norm of zero has no logarithm: it is drawn at the bottom
        positive = np.append(shown, now)
        positive = positive[positive > 0]
        low = float(positive.min()) if len(positive) else high
        is_log = 0 < low < high
    num_levels = 8 * height
    heights = np.zeros(width, dtype=np.int64)
    for index in np.flatnonzero(np.isfinite(highest)):
        share = _share(float(highest[index]), low, high, is_log)
        heights[index] = 1 + round(share * (num_levels - 1))
    heights[nonfinite] = num_levels
    lines = tuple(
        "".join(ramp[int(np.clip(level - 8 * row, 0, 8))] for level in heights) for row in reversed(range(height))
    )
    return Curve(lines, tuple(map(int, nonfinite)), low, high, is_log)


def _share(value: float, low: float, high: float, is_log: bool) -> float:
    """Return where a value lies between the lowest, 0, and the highest, 1."""
    if not high > low:
        return 0.5
    if is_log:
        return (math.log(max(value, low)) - math.log(low)) / (math.log(high) - math.log(low))
    return (value / high - low / high) / (1 - low / high) if abs(high) > 1e300 else (value - low) / (high - low)
