"""Where every rule set stands as a picture: what it detects against what it cries wolf about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.zoo.interval import wilson
from benchmarks.zoo.result import Result
from benchmarks.zoo.scores import OURS, contenders, score
from benchmarks.zoo.strips import FORMAT


OUR_COLOUR, COLOUR = "#0072B2", "#7F7F7F"


def draw(results: Sequence[Result], path: Path) -> None:
    """Write the picture; the format is the suffix's. Bars are Wilson intervals."""
    scores = [score(results, contender) for contender in contenders(results)]
    scores.sort(key=lambda own: (own.contender != OURS, own.false[0] / max(1, own.false[1]), -own.detected[0]))
    places = list(range(len(scores)))[::-1]
    panels_of = (
        ("failing runs detected", [own.detected for own in scores], True),
        ("failing runs rightly named", [(own.named[0], own.detected[1]) for own in scores], True),
        ("healthy runs with a false alarm", [own.false for own in scores], False),
    )
    with mpl.rc_context({**FORMAT, "axes.spines.left": False}):
        figure = Figure(figsize=(11.5, 0.42 * len(scores) + 1.3), layout="constrained")
        panels = figure.subplots(1, len(panels_of), sharey=True)
        for panel, (title, parts, is_good) in zip(panels, panels_of, strict=True):
            for place, own, (hits, total) in zip(places, scores, parts, strict=True):
                rate = 100 * hits / max(1, total)
                low, high = (100 * bound for bound in wilson(hits, total))
                colour = OUR_COLOUR if own.contender == OURS else COLOUR
                panel.barh(place, rate, height=0.62, color=colour, alpha=0.85)
                panel.plot([low, high], [place, place], color="black", linewidth=0.9)
                panel.annotate(
                    f"{hits}/{total}",
                    (max(high, rate), place),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
            panel.set(xlim=(0, 118), xlabel="% of runs")
            panel.set_xticks(range(0, 101, 25))
            panel.set_title(f"{title} ({'more' if is_good else 'less'} is better)", loc="left", fontsize=9)
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="x", color="#E5E5E5", linewidth=0.5)
            panel.set_axisbelow(True)
        panels[0].set_yticks(places, [own.contender for own in scores])
        figure.suptitle("The same runs, judged by every rule set", x=0.01, ha="left", fontsize=11, weight="bold")
        figure.savefig(path, dpi=160)
