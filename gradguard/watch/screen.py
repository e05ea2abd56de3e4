"""One look at a run as a screen of a given size: facts, curves, layers, and what happened, newest first."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradguard.cli.render import duration, number, table, text
from gradguard.printable import compact
from gradguard.record.statistics import Flag
from gradguard.watch.curve import ASCII, BLOCKS, Curve, columns_of, draw
from gradguard.watch.happened import happened, height_of
from gradguard.watch.layers import Layer
from gradguard.watch.verdict import verdict
from gradguard.watch.watcher import View, recent_steps


SMALLEST = 40  # columns below which nothing is laid out any more
LABEL = 18  # columns left of a curve
WIDE = 72  # columns from which there is room for the present norms
TALL = 24  # lines of a terminal from which curves are more than a line high
MOST_LAYERS = 5
FAR = 3.0  # times its usual norm from which a layer is worth a word
NAMES = {"running": "green", "closed": "green", "interrupted": "red", "stopped": "red", "failed": "red"}


class Signs(NamedTuple):
    """Characters that the terminal has."""

    ramp: str
    told: str
    acted: str
    skipped: str
    found: str
    nonfinite: str
    arrow: str


UNICODE = Signs(BLOCKS, "!", "▲", "✕", "·", "✕", "→")
PLAIN = Signs(ASCII, "!", "^", "x", ".", "x", "->")


def screen(view: View, width: int, height: int | None = None, is_unicode: bool = True) -> Group:
    """Return what is to be printed.

    Args:
        view: of the run.
        width: columns.
        height: lines that there are; None for as many as it takes.
        is_unicode: the terminal has block characters.
    """
    width = max(width, SMALLEST)
    signs = UNICODE if is_unicode else PLAIN
    tall = 3 if height is None or height >= TALL else 1
    parts: list[RenderableType] = [_head(view), _verdict(view), _state(view), Text()]
    if len(view.scalars):
        parts += [_curves(view, width, tall, signs), Text()]
    room = None if height is None else height - height_of(parts, width)
    num_layers = min(MOST_LAYERS, len(view.layers)) if _is_trouble_near(view) else 0
    for count in range(num_layers, 0, -1):
        layers: list[RenderableType] = [*_layers(view, view.layers[:count], width), Text()]
        height_of_layers = height_of(layers, width)
        if room is None or height_of_layers <= room // 2:
            parts += layers
            room = None if room is None else room - height_of_layers
            break
    return Group(*parts, *happened(view.entries, width, room, signs.arrow), *_caveat(view))


def _verdict(view: View) -> Text:
    words, style = verdict(view)
    return text(words[:1].upper() + words[1:], style=style)


def _is_trouble_near(view: View) -> bool:
    """Return whether something was found in the steps that the layers are about."""
    if not len(view.scalars):
        return False
    first = int(view.scalars["step"][-recent_steps(view) :][0])
    return any(entry.is_alarm and entry.last_step >= first for entry in view.entries)


def _caveat(view: View) -> list[RenderableType]:
    if not view.num_unreadable:
        return []
    return [text(f"{view.num_unreadable:,} lines of the journal cannot be read; see: gradguard verify", style="yellow")]


def _head(view: View) -> Text:
    """Return the name of the run and how it stands."""
    head = text(view.path, style="bold")
    name = view.info.get("name")
    if name:
        head.append_text(text(f" (guard {name!r})"))
    return head.append("  ").append_text(text(view.status, style=f"bold {NAMES.get(view.status, 'yellow')}"))


def _state(view: View) -> Text:
    parts = [text(f"step {int(view.scalars['step'][-1]):,}" if len(view.scalars) else "no step yet")]
    if view.rate is not None:
        parts.append(text(f"{_rate(view.rate)}{' on average' if view.is_average else ''}"))
    if view.mode == "observe":
        parts.append(text("only watching (mode: observe)"))
    if view.is_over:
        parts.append(text(view.last_word, style=NAMES.get(view.status, "")))
    else:
        style = "yellow" if view.is_stalled else ""
        parts.append(text(behind(view), style=style))
        if view.process == "unknown":
            parts.append(
                text(f"on {view.info.get('host', '?')}, whose processes cannot be seen from here", style="dim")
            )
    return Text(", ").join(parts)


def behind(view: View) -> str:
    """Return how long ago the files were written last, and how many steps that may be."""
    ago = duration(view.silent_sec) if view.silent_sec >= 1 else "a moment"
    if view.is_stalled:
        return f"nothing written for {ago}: it waits, evaluates, or hangs"
    steps = round(view.rate * view.silent_sec) if view.rate else 0
    about = f" (about {min(steps, view.burst):,} steps)" if steps > 1 else ""
    return f"written {ago} ago{about}"


def _rate(rate: float) -> str:
    return (
        f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s" if rate >= 0.1 else f"{60 * rate:.2g} steps/min"
    )


def _curves(view: View, width: int, tall: int, signs: Signs) -> Table:
    """Return the curves of loss and norm, and under them what the guard did."""
    rows = view.scalars
    plot = width - LABEL - 1
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=LABEL, no_wrap=True)
    grid.add_column(width=plot, no_wrap=True)
    for name, is_log in (("loss", None), ("global_norm", True)):
        values = rows[name].astype(np.float64)
        title = "grad norm" if name == "global_norm" else name
        if name == "loss" and np.isnan(values).all():
            grid.add_row(text("loss"), text("not observed; call guard.observe(loss)", style="dim"))
            continue
        curve = draw(values, plot, tall, is_log, signs.ramp)
        if name == "global_norm" and tall > 1:
            grid.add_row()
        for label, line in zip(_labels(title, float(values[-1]), curve, tall), curve.lines, strict=True):
            grid.add_row(label, _colored(line, curve, signs))
    grid.add_row(text("guard", style="dim"), _marks(view, plot, signs))
    first, last = f"step {int(rows['step'][0]):,}", f"{int(rows['step'][-1]):,}"
    span = min(plot, len(rows))
    gap = span - len(first) - len(last)
    axis = first + " " * gap + last if gap > 0 else f"{first} to {last}"
    grid.add_row(Text(), text(axis, style="dim"))
    return grid


def _labels(title: str, now: float, curve: Curve, tall: int) -> list[Text]:
    """Return what stands left of each line of a curve: name, present value, range."""
    if tall == 1:
        return [Text.assemble((title, "bold"), f" {number(now)}")]
    bounds = [number(curve.high), "log" if curve.is_log else "", number(curve.low)]
    if math.isnan(curve.high):
        bounds = ["", "", ""]
    lines = [Text(title, "bold"), Text(f"now {number(now)}"), Text()]
    for line, bound in zip(lines, bounds, strict=True):
        line.append(bound.rjust(LABEL - len(line.plain)), "dim")
    return lines


def _colored(line: str, curve: Curve, signs: Signs) -> Text:
    """Return a line of a curve; a column with a step that is not finite is a cross and red."""
    drawn = Text(line, "cyan")
    for column in curve.nonfinite:
        drawn = Text.assemble(drawn[:column], (signs.nonfinite, "red"), drawn[column + 1 :])
    return drawn


def _marks(view: View, plot: int, signs: Signs) -> Text:
    """Return what the guard did, in the columns of the curves, and what the signs mean."""
    flags = view.scalars["flags"]
    column = columns_of(len(flags), plot)
    marks = [" "] * plot
    meanings = []
    skipped = Flag.SKIPPED_BY_GUARD | Flag.SKIPPED_BY_SCALER
    is_told = np.isin(view.scalars["step"], np.fromiter(view.only_told, dtype=np.int64))
    has_acted = (flags & Flag.INTERVENTION) != 0
    has_found = (flags & Flag.FINDING) != 0
    minor = "found" if has_acted.any() or any(entry.is_alarm for entry in view.entries) else "minor notes"
    for is_set, sign, style, meaning in (
        (has_found, signs.found, "yellow", minor),
        (has_acted & is_told, signs.told, "yellow", "warned"),
        (has_acted & ~is_told, signs.acted, "yellow", "acted"),
        ((flags & skipped) != 0, signs.skipped, "red", "skipped"),
    ):
        for place in np.unique(column[is_set]):
            marks[place] = sign
        if is_set.any():
            meanings.append((sign, style, f"{sign} {meaning} {np.count_nonzero(is_set):,}"))
    if not meanings:
        return text("nothing found or done in these steps", style="dim")
    colors = {sign: style for sign, style, _ in meanings}
    line = Text.assemble(*((mark, colors.get(mark, "")) for mark in marks))
    legend = "  ".join(words for _, _, words in meanings)
    return line.append("\n").append(legend, "dim")


def _layers(view: View, layers: list[Layer], width: int) -> list[RenderableType]:
    """Return the layers that were farthest from their usual norm; where all are NaN one line says it all."""
    title = Text("Worst layers", "bold").append(f", last {recent_steps(view)} steps", "dim")
    if all(layer.times < FAR for layer in layers):
        title.append(f": none above {FAR:g} times its usual norm", "dim")
    if all(not np.isfinite(layer.highest) for layer in layers) and len(layers) == min(MOST_LAYERS, len(view.layers)):
        return [title.append(": NaN or infinite in all that stand out", "dim")]
    columns = ["layer", "usual", "largest", "times", "at step", *([] if width < WIDE else ["now"])]
    result = table("", columns, right=frozenset(columns[1:]))
    for layer in layers:
        style = "" if layer.times < FAR else "yellow" if np.isfinite(layer.times) else "red"
        times = f"{compact(layer.times)}x"
        result.add_row(
            text(layer.name),
            number(layer.usual),
            Text(number(layer.highest), style),
            Text(times if np.isfinite(layer.times) else "-", style),
            f"{layer.step:,}",
            *([] if width < WIDE else ["-" if layer.now < 0 else number(layer.now)]),
        )
    return [title, result]
