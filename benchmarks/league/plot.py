"""The league as a picture: a panel a cell, every entrant's loss beside that of the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.league.conditions import CONDITIONS
from benchmarks.league.entrants import ENTRANTS
from benchmarks.league.run import Run
from benchmarks.league.standing import standing
from benchmarks.league.tables import tasks_of


FORMAT: Any = {"font.size": 7.5, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "league"}
OURS = {"default": "#0072B2", "pretrain": "#56B4E9"}
OTHERS = "#7F7F7F"
FARTHEST = 4.0  # times the best loss; what is beyond, or broken, stands at the edge
TICKS = (1.0, 1.5, 2.0, 3.0)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the picture; the format is the suffix's. A dot a seed and a line at the mean, in multiples of the best."""
    tasks = tasks_of(runs)
    conditions = [name for name in CONDITIONS if any(run.condition == name for run in runs)]
    names = [name for name in ENTRANTS if any(run.entrant == name for run in runs)]
    with mpl.rc_context(FORMAT):
        figure = Figure(figsize=(1.45 * len(conditions) + 1.6, 1.75 * len(tasks) + 0.7), layout="constrained")
        panels = figure.subplots(len(tasks), len(conditions), sharex=True, sharey=True, squeeze=False)
        for row, task in zip(panels, tasks, strict=True):
            for panel, condition in zip(row, conditions, strict=True):
                own = [run for run in runs if run.task == task and run.condition == condition]
                _panel(panel, own, names)
            row[0].set_ylabel(task, fontsize=9, weight="bold")
        for panel, condition in zip(panels[0], conditions, strict=True):
            panel.set_title(CONDITIONS[condition].title, loc="left", fontsize=8.5)
        panels[0][0].set_yticks(range(len(names)), [ENTRANTS[name].title for name in names])
        panels[0][0].invert_yaxis()
        figure.supxlabel(
            f"held-out loss at the end, times the best mean (at the right edge: {FARTHEST:g} or more, or not finite)",
            fontsize=8,
        )
        figure.suptitle(
            "Where each guard leaves the model (left is better)", x=0.01, ha="left", fontsize=11, weight="bold"
        )
        figure.savefig(path, dpi=150)


def _panel(panel: Any, runs: Sequence[Run], names: Sequence[str]) -> None:
    panel.set(xscale="log", xlim=(0.85, 1.1 * FARTHEST))
    panel.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    panel.minorticks_off()
    panel.grid(axis="x", color="#E5E5E5", linewidth=0.5)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    places = {key[2]: place for key, place in standing(runs).items()}
    finite = [place.final for place in places.values() if math.isfinite(place.final)]
    if not finite:
        return
    best = min(finite)
    for height, name in enumerate(names):
        colour = OURS.get(name, OTHERS)
        for run in runs:
            if run.entrant == name:
                panel.plot(_place(run.final / best), height, ".", color=colour, markersize=4, alpha=0.8)
        if name in places:
            mean = _place(places[name].final / best)
            panel.plot([mean, mean], [height - 0.38, height + 0.38], color=colour, linewidth=1.6)


def _place(multiple: float) -> float:
    # Written so that NaN stands at the edge.
    return multiple if multiple < FARTHEST else FARTHEST
