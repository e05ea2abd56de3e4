"""The overheads as a picture: against the number of tensors, and against the bytes of gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from benchmarks.overhead.cell import Cell
from benchmarks.overhead.result import Result
from benchmarks.overhead.samples import Timing


# Colours of Okabe and Ito, told apart by every kind of eye; with a marker each, so that print without colour does too.
STYLES = {
    "hooks": ("#CC79A7", "v", "hooks of the tutorials"),
    "wandb": ("#999999", "P", "wandb.watch, every step"),
    "clip": ("#000000", "s", "clip_grad_norm_"),
    "zclip": ("#E69F00", "D", "ZClip"),
    "smartclip": ("#56B4E9", "^", "smartclip"),
    "always-due": ("#D55E00", "X", "gradguard, clip due at every step"),
    "default": ("#0072B2", "o", "gradguard, preset default"),
}
LARGE = 1000  # entries of an average tensor, below which a workload's cost is that of its tensors, not of its bytes
FORMAT = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "overhead"}


def draw(result: Result, path: Path) -> None:
    """Write the picture; the format is the suffix's.

    Each workload counts once, under the optimizer where most contenders took part. The panel of bytes leaves out
    workloads of tiny tensors, whose cost has nothing to do with their bytes.
    """
    cells = _one_each(result.cells)
    layers = [cell for cell in cells if cell.workload.startswith("mlp-")] or cells
    large = [cell for cell in cells if cell.num_bytes >= 4 * LARGE * cell.num_tensors] or cells
    with mpl.rc_context(FORMAT):
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _panel(left, layers, "num_tensors")
        _panel(right, large, "num_bytes")
        ordered = sorted(large, key=lambda cell: cell.num_bytes)
        right.plot(
            [cell.num_bytes for cell in ordered],
            [1e-6 * cell.read.total for cell in ordered],
            color="#009E73",
            linestyle=":",
            linewidth=1.4,
            label="one read at memory speed",
        )
        counts = sorted({cell.num_tensors for cell in layers})
        left.set_xticks(counts, [f"{count:,}" for count in counts])
        left.xaxis.set_minor_formatter(NullFormatter())
        left.yaxis.set_major_formatter(EngFormatter(unit="s"))
        right.xaxis.set_major_formatter(EngFormatter(unit="B"))
        left.set(xlabel="parameter tensors", ylabel="time added to a bare optimizer step")
        right.set(xlabel="gradients")
        left.set_title("by number of tensors (perceptrons)", loc="left", fontsize=9)
        right.set_title("by size of the gradients (all workloads but of tiny tensors)", loc="left", fontsize=9)
        figure.suptitle(
            "What watching the gradients costs at every step", x=0.01, ha="left", fontsize=11, weight="bold"
        )
        handles, labels = right.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=160)


def _one_each(cells: tuple[Cell, ...]) -> list[Cell]:
    best: dict[str, Cell] = {}
    for cell in cells:
        known = best.get(cell.workload)
        if known is None or (len(cell.timings), -cell.timings["bare"].step) > (
            len(known.timings),
            -known.timings["bare"].step,
        ):
            best[cell.workload] = cell
    return list(best.values())


def _panel(axes: Any, cells: list[Cell], across: str) -> None:
    for name, (colour, marker, words) in STYLES.items():
        seen = sorted((cell for cell in cells if _is_seen(cell, name)), key=lambda cell: getattr(cell, across))
        if seen:
            timings = [cell.timings[name] for cell in seen]
            axes.errorbar(
                [getattr(cell, across) for cell in seen],
                [1e-6 * timing.overhead for timing in timings],
                yerr=[_below(timings), _above(timings)],
                color=colour,
                marker=marker,
                markersize=5,
                linewidth=1.2,
                elinewidth=0.8,
                label=words,
            )
    axes.set(xscale="log", yscale="log")
    axes.grid(which="major", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def _is_seen(cell: Cell, name: str) -> bool:
    """Whether a contender took part and stands out from the noise."""
    return name in cell.timings and cell.timings[name].overhead_interval[0] > 0


def _below(timings: list[Timing]) -> list[float]:
    return [1e-6 * max(0.0, timing.overhead - timing.overhead_interval[0]) for timing in timings]


def _above(timings: list[Timing]) -> list[float]:
    return [1e-6 * max(0.0, timing.overhead_interval[1] - timing.overhead) for timing in timings]
