"""Curves over steps drawn in a terminal: two by four dots a character, or letters where there is no colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from rich.text import Text


LABEL_WIDTH = 6  # characters left of the axis
LOG_SCALE_FROM = 4.0  # ratio of the highest to the lowest value from which the scale is logarithmic
DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of U+2800, by column and row within a character
FIRST_BRAILLE = 0x2800


@dataclass(frozen=True)
class Curve:
    """One value a step.

    Args:
        name: what it is called; its first letter draws it where there is no colour.
        values: (S,); NaN and infinity are shown in the band above the plot.
        style: rich style of the line.
    """

    name: str
    values: Sequence[float]
    style: str


@dataclass(frozen=True)
class Marker:
    """A step worth pointing at, with a few words."""

    step: int
    label: str


class Scale:
    """Maps values to heights from 0 to 1, linearly or by their logarithm, whichever shows more.

    Example:
        >>> scale = Scale(1.0, 100.0)
        >>> scale.height(10.0), scale.ticks(3)
        (0.5, [1.0, 10.0, 100.0])
    """

    def __init__(self, low: float, high: float) -> None:
        self.is_log = low > 0 and high / low >= LOG_SCALE_FROM
        self._low, self._high = low, max(high, low + 1e-9)

    def height(self, value: float) -> float:
        """Return where the value lies between the lowest, 0, and the highest, 1."""
        if self.is_log:
            return math.log(value / self._low) / math.log(self._high / self._low)
        return (value - self._low) / (self._high - self._low)

    def ticks(self, count: int) -> list[float]:
        """Return at most so many round numbers within the scale, ascending."""
        first, last = math.floor(math.log10(max(self._low, 1e-30))) - 1, math.ceil(math.log10(self._high)) + 1
        if self.is_log:
            choices = [
                [m * 10.0**e for e in range(first, last) for m in ms] for ms in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
            ]
        else:
            steps = [m * 10.0**e for e in range(-6, last) for m in (1, 2, 5)]
            choices = [
                [step * k for k in range(int(self._high / step) + 1)] for step in steps if self._high / step < 1000
            ]
        for choice in choices:
            inside = [tick for tick in choice if self._low <= tick <= self._high]
            if len(inside) <= count:
                return inside
        return []


def draw(curves: Sequence[Curve], markers: Sequence[Marker], width: int, height: int, is_colored: bool) -> Text:
    """Draw curves into one picture; the later ones lie on top.

    Args:
        curves: at least one with a finite value.
        markers: steps that are pointed at below the axis.
        width: characters, axis included, >= 30.
        height: characters of the plot itself, >= 4.
        is_colored: dots in the curves' styles; otherwise letters, which tell the curves apart without colour.
    """
    num_steps = max(len(curve.values) for curve in curves)
    num_columns = width - LABEL_WIDTH - 1
    finite = np.concatenate([np.asarray(curve.values)[np.isfinite(curve.values)] for curve in curves])
    scale = Scale(float(finite.min()), float(finite.max()))
    cells = [[(" ", "")] * num_columns for _ in range(height)]
    at = {column_of(marker.step, num_steps, num_columns): marker for marker in markers}
    for row in cells:
        for column in at:
            row[column] = ("┊" if is_colored else ":", "dim")
    for curve in curves:
        _draw_curve(cells, curve, scale, num_steps, is_colored)

    picture = Text(no_wrap=True)
    labels = {round((height - 1) * (1 - scale.height(tick))): f"{tick:g}" for tick in scale.ticks(max(2, height // 2))}
    for line in _bands(curves, num_steps, num_columns):
        picture.append_text(line)
    for number, row in enumerate(cells):
        picture.append(f"{labels.get(number, ''):>{LABEL_WIDTH - 1}} ", "dim").append(
            "┤" if number in labels else "│", "dim"
        )
        for character, style in row:
            picture.append(character, style)
        picture.append("\n")
    picture.append_text(_axis(num_steps, num_columns, at))
    return picture


def column_of(step: int, num_steps: int, num_columns: int) -> int:
    """Return the character column that shows a step."""
    return min(step * num_columns // max(1, num_steps), num_columns - 1)


def _draw_curve(
    cells: list[list[tuple[str, str]]], curve: Curve, scale: Scale, num_steps: int, is_colored: bool
) -> None:
    height, width = len(cells), len(cells[0])
    dots: npt.NDArray[np.int64] = np.zeros((height, width), dtype=np.int64)
    previous: int | None = None
    for column, value in enumerate(_by_column(curve.values, num_steps, 2 * width)):
        if not math.isfinite(value):
            previous = None
            continue
        y = round((4 * height - 1) * (1 - scale.height(value)))
        # The line is drawn through every row between two neighbours, so that a jump is no gap.
        start = y if previous is None else previous + (y > previous) - (y < previous)
        for row in range(min(start, y), max(start, y) + 1):
            dots[row // 4, column // 2] |= DOT_BITS[column % 2][row % 4]
        previous = y
    for row, column in np.argwhere(dots):
        character = chr(FIRST_BRAILLE + int(dots[row, column])) if is_colored else curve.name[0]
        cells[row][column] = (character, curve.style)


def _by_column(values: Sequence[float], num_steps: int, num_columns: int) -> list[float]:
    """Return one value a column: the highest of its steps where that stands out, else their mean, NaN if none is."""
    array = np.asarray(values, dtype=np.float64)
    edges = np.linspace(0, num_steps, num_columns + 1).astype(int)
    result = []
    for left, right in pairwise(edges):
        part = array[left : max(left + 1, right)]
        part = part[np.isfinite(part)]
        if not len(part):
            result.append(math.nan)
        else:
            result.append(float(part.max() if part.max() > 1.5 * part.min() else part.mean()))
    return result


def _bands(curves: Sequence[Curve], num_steps: int, num_columns: int) -> list[Text]:
    """Return one line for each curve that ends in NaN: the steps from the first to the last that are not finite."""
    lines = []
    for curve in curves:
        bad = ~np.isfinite(np.asarray(curve.values, dtype=np.float64))
        if not len(bad) or not bad[-1]:
            continue
        first = column_of(int(np.flatnonzero(~bad)[-1]) + 1 if not bad.all() else 0, num_steps, num_columns)
        length = num_columns - first
        words = f" {curve.name}: NaN "
        band = words.center(length, "▒") if length >= len(words) else "▒" * length
        lines.append(Text(" " * (LABEL_WIDTH + 1 + first)).append(band, curve.style).append("\n"))
    return lines


def _axis(num_steps: int, num_columns: int, at: dict[int, Marker]) -> Text:
    line = "".join("▲" if column in at else "─" for column in range(num_columns))
    axis = Text(" " * LABEL_WIDTH).append("└" + line + "\n", "dim")
    words = [" "] * num_columns
    free = 0
    for column, marker in sorted(at.items()):
        label = f"{marker.label}"
        start = min(max(free, column), num_columns - len(label))
        if start >= free:
            words[start : start + len(label)] = label
            free = start + len(label) + 1
    axis.append(" " * (LABEL_WIDTH + 1) + "".join(words).rstrip() + "\n", "yellow")
    numbers = [" "] * (num_columns + LABEL_WIDTH)
    for step in _round_steps(num_steps):
        label = f"step {step}" if step == 0 else str(step)
        start = column_of(step, num_steps, num_columns)
        numbers[start : start + len(label)] = label
    return axis.append(" " * (LABEL_WIDTH + 1) + "".join(numbers)[:num_columns].rstrip(), "dim")


def _round_steps(num_steps: int) -> list[int]:
    apart = next(m * 10**e for e in range(9) for m in (1, 2, 5) if m * 10**e * 6 >= num_steps)
    return list(range(0, num_steps, apart))
