"""How much each arm repairs, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.zoo.repair.attempt import Attempt
from benchmarks.zoo.repair.rates import CLASSES, arms_of, class_rate
from benchmarks.zoo.standing import COLOUR, OUR_COLOUR
from benchmarks.zoo.strips import FORMAT


TITLES = {
    "loop": "repaired, the cure is in the loop",
    "surgery": "repaired, the cure is in the model",
    "advice": "left alone, only advice helps",
}


def draw(attempts: Sequence[Attempt], path: Path, ours: Sequence[str] = ("default", "repair")) -> None:
    """Write the picture; the format is the suffix's. Bars are rates, lines their Wilson intervals.

    Args:
        attempts: of every arm.
        path: of the picture.
        ours: arms that are the guard's.
    """
    failing = [attempt for attempt in attempts if attempt.group == "failing"]
    arms = arms_of(failing)
    places = list(range(len(arms)))[::-1]
    with mpl.rc_context({**FORMAT, "axes.spines.left": False}):
        figure = Figure(figsize=(11.5, 0.42 * len(arms) + 1.3), layout="constrained")
        panels = figure.subplots(1, len(CLASSES), sharey=True)
        for panel, kind in zip(panels, CLASSES, strict=True):
            for place, arm in zip(places, arms, strict=True):
                own = class_rate([attempt for attempt in failing if attempt.arm == arm], kind)
                low, high = own.interval
                panel.barh(place, own.percent, height=0.62, color=OUR_COLOUR if arm in ours else COLOUR, alpha=0.85)
                panel.plot([low, high], [place, place], color="black", linewidth=0.9)
                panel.annotate(
                    f"{own}", (high, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7
                )
            panel.set(xlim=(0, 118), xlabel="% of runs")
            panel.set_xticks(range(0, 101, 25))
            panel.set_title(TITLES[kind], loc="left", fontsize=9)
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="x", color="#E5E5E5", linewidth=0.5)
            panel.set_axisbelow(True)
        panels[0].set_yticks(places, arms)
        figure.suptitle("Runs that fail, tended by different hands (more is better)", x=0.01, ha="left", weight="bold")
        figure.savefig(path, dpi=160)
