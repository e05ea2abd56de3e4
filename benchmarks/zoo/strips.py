"""The gap between healthy and failing runs as a picture: one strip plot a statistic, its threshold drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.zoo.extremes import STATISTICS, Statistic
from benchmarks.zoo.result import Result


# Colours of Okabe and Ito, told apart by every kind of eye, and a marker each.
HEALTHY, OTHER, MEANT = ("#009E73", "o"), ("#B0B0B0", "s"), ("#D55E00", "D")
FORMAT = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "zoo"}
COLUMNS = 4
NUM_LABELLED = 3  # of a strip
HALF_WIDTH = 0.3  # of a strip
ALARMING, CALM = 1e4, 3e2  # times the threshold, to either side, that a logarithmic axis reaches
TOP = 1.3  # of a linear one
HALO = [withStroke(linewidth=2, foreground="white")]  # around words that cross a line
NEAR = 0.055  # of the axis: labels closer than that are pushed apart


def draw(results: Sequence[Result], path: Path) -> None:
    """Write the picture; the format is the suffix's."""
    shown = [name for name in STATISTICS if any(name in result.extremes for result in results)]
    rows = math.ceil(len(shown) / COLUMNS) or 1
    with mpl.rc_context(FORMAT):
        figure = Figure(figsize=(13.2, 3.05 * rows + 0.9), layout="constrained")
        panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
        for panel, name in zip(panels, shown, strict=False):
            _panel(panel, name, STATISTICS[name], results)
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        figure.suptitle(
            "How far each statistic went in every run, and where its alarm begins",
            x=0.01,
            ha="left",
            fontsize=12,
            weight="bold",
        )
        handles = [
            Line2D([], [], color=colour, marker=marker, linestyle="", markersize=5, label=label)
            for (colour, marker), label in (
                (HEALTHY, "healthy"),
                (MEANT, "failing, and this diagnosis is expected"),
                (OTHER, "failing of something else"),
            )
        ]
        handles.append(
            Line2D(
                [],
                [],
                color="black",
                linestyle="--",
                linewidth=0.9,
                label="threshold (shaded: alarming; points at the edge lie beyond it)",
            )
        )
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        figure.savefig(path, dpi=160)


def _panel(axes: Any, name: str, statistic: Statistic, results: Sequence[Result]) -> None:
    strips = (
        ("healthy", HEALTHY, [r for r in results if r.group == "healthy"]),
        ("failing of it", MEANT, [r for r in results if r.group == "failing" and statistic.diagnosis in r.expected]),
        ("failing else", OTHER, [r for r in results if r.group == "failing" and statistic.diagnosis not in r.expected]),
    )
    is_log = statistic.scale == "log"
    values = [
        _clip(result.extremes[name], statistic) for _, _, own in strips for result in own if name in result.extremes
    ]
    axes.set_yscale("log" if is_log else "linear")
    low, high = _limits([*values, statistic.threshold], is_log)
    axes.set(xlim=(-0.6, 2.75), ylim=(low, high))
    for place, (_, (colour, marker), own) in enumerate(strips):
        points = sorted((_clip(r.extremes[name], statistic), r.id) for r in own if name in r.extremes)
        offsets = _spread([_height(value, low, high, is_log) for value, _ in points])
        axes.scatter(
            [place + offset for offset in offsets],
            [value for value, _ in points],
            s=13 if colour != OTHER[0] else 9,
            color=colour,
            marker=marker,
            alpha=0.75,
            linewidth=0,
        )
        if colour != OTHER[0]:
            _label(axes, place, _worth_a_label(points, statistic, place == 0), (low, high), is_log, colour)
    is_high = statistic.side == "high"
    axes.axhspan(statistic.threshold, high if is_high else low, color="#D55E00", alpha=0.06, linewidth=0)
    axes.axhline(statistic.threshold, color="black", linestyle="--", linewidth=0.9)
    axes.annotate(
        f"{statistic.threshold:g}",
        (2.75, statistic.threshold),
        xytext=(0, 3 if is_high else -3),
        textcoords="offset points",
        ha="right",
        va="bottom" if is_high else "top",
        fontsize=7,
    )
    counts = [sum(name in result.extremes for result in own) for _, _, own in strips]
    axes.set_xticks(range(3), [f"{label}\n{count} runs" for (label, _, _), count in zip(strips, counts, strict=True)])
    axes.tick_params(axis="x", length=0)
    if is_log:
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="y", which="minor", length=0)
    axes.grid(axis="y", which="major", color="#E5E5E5", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_title(f"{statistic.diagnosis}\n{statistic.title}", loc="left", fontsize=8.5)


def _worth_a_label(
    points: Sequence[tuple[float, str]], statistic: Statistic, is_healthy: bool
) -> list[tuple[float, str]]:
    """Return the healthy runs nearest to the alarm, or beyond it; or the failing ones that stay far from it."""
    ordered = sorted(points, reverse=(statistic.side == "high") == is_healthy)
    if not is_healthy:
        ordered = [point for point in ordered if not statistic.is_beyond(point[0])]
    first: dict[str, float] = {}
    for value, id in ordered:
        first.setdefault(id, value)
    beyond = sum(statistic.is_beyond(value) for value in first.values()) if is_healthy else 0
    return [(value, id) for id, value in first.items()][: max(NUM_LABELLED, min(beyond, 2 * NUM_LABELLED))]


def _label(
    axes: Any, place: int, points: Sequence[tuple[float, str]], limits: tuple[float, float], is_log: bool, colour: str
) -> None:
    """Write ids beside their points, from the lowest up, none over another."""
    last = -1.0
    for value, id in sorted(points):
        height = max(_height(value, *limits, is_log), last + NEAR)
        last = height
        axes.annotate(
            id,
            (place + 0.06, value),
            xytext=(place + HALF_WIDTH + 0.06, _value(min(height, 0.98), *limits, is_log)),
            fontsize=6.5,
            color=colour,
            va="center",
            path_effects=HALO,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "alpha": 0.6},
        )


def _spread(heights: Sequence[float]) -> list[float]:
    """Return sideways offsets that keep points of nearly the same height apart, the first of each in the middle."""
    taken: dict[int, int] = {}
    offsets = []
    for height in heights:
        band = int(height * 40)
        count = taken[band] = taken.get(band, -1) + 1
        side = (count + 1) // 2 * (1 if count % 2 else -1)
        offsets.append(max(-HALF_WIDTH, min(HALF_WIDTH, 0.055 * side)))
    return offsets


def _clip(value: float, statistic: Statistic) -> float:
    """Return where a value is drawn: what lies far beyond the threshold is put at the edge."""
    if statistic.scale == "linear":
        return min(max(value, 0.0), TOP)
    above, below = (ALARMING, CALM) if statistic.side == "high" else (CALM, ALARMING)
    return min(max(value, statistic.threshold / below), statistic.threshold * above)


def _limits(values: Sequence[float], is_log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_log:
        margin = max((math.log10(high) - math.log10(low)) * 0.08, 0.1)
        return 10 ** (math.log10(low) - margin), 10 ** (math.log10(high) + margin)
    margin = max((high - low) * 0.08, 0.05)
    return low - margin, high + margin


def _height(value: float, low: float, high: float, is_log: bool) -> float:
    """Return where on the axis a value is, from 0 to 1."""
    if is_log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


def _value(height: float, low: float, high: float, is_log: bool) -> float:
    if is_log:
        return math.exp(math.log(low) + height * (math.log(high) - math.log(low)))
    return low + height * (high - low)
