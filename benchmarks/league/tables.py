"""One table a task: final loss, steps lost and interventions, an entrant a row and a condition a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.league.conditions import CONDITIONS
from benchmarks.league.entrants import ENTRANTS
from benchmarks.league.run import Run
from benchmarks.league.standing import Place, Standing, standing


BEST, NEAR = "*", "+"
NOTES = (
    "*: best.  +: within noise of best (2 standard errors of the difference, or 1 %).",
    "lost: not a finite loss at one seed at least.  Means over the seeds.",
)


@dataclass(frozen=True)
class Part:
    """One block of rows.

    Args:
        title: what the numbers are.
        cell: how a place is shown.
    """

    title: str
    cell: Callable[[Place], str]


def final_loss(place: Place) -> str:
    """Return the loss in at most five characters, and a mark.

    Example:
        >>> final_loss(Place(2.0712, 0.01, 0, 0, is_best=False, is_near=True, stopped=0))
        '2.071+'
        >>> final_loss(Place(float("inf"), 0.0, 0, 0, is_best=False, is_near=False, stopped=0))
        'lost '
    """
    if not math.isfinite(place.final):
        return "lost "
    mark = BEST if place.is_best else NEAR if place.is_near else " "
    return (f"{place.final:.3f}" if place.final < 10 else f"{min(place.final, 99999):.0f}") + mark


PARTS = (
    Part("final loss", final_loss),
    Part("steps lost", lambda place: f"{place.steps_lost:.0f} "),
    Part("interventions", lambda place: f"{place.interventions:.0f} "),
)


def to_table(runs: Sequence[Run], task: str) -> Table:
    """Return a task's table for a terminal of 80 columns."""
    own = [run for run in runs if run.task == task]
    conditions = _in_order((run.condition for run in own), CONDITIONS)
    table = Table(
        title=_title(own, task),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("", no_wrap=True)
    for condition in conditions:
        # One word a line, with room for the mark on the right.
        table.add_column(_head(condition), justify="right", no_wrap=True)
    places = standing(own)
    for part in PARTS:
        table.add_row(f"[bold]{part.title}[/]")
        for title, cells in _rows(places, task, conditions, part):
            table.add_row(title, *cells)
        table.add_section()
    return table


def to_markdown(runs: Sequence[Run], task: str) -> str:
    """Return the same table for a report."""
    own = [run for run in runs if run.task == task]
    conditions = _in_order((run.condition for run in own), CONDITIONS)
    places = standing(own)
    lines = []
    for part in PARTS:
        lines.append(f"| {part.title} | {' | '.join(CONDITIONS[name].title for name in conditions)} |")
        lines.append(f"| :--- |{' ---: |' * len(conditions)}")
        lines += [
            f"| {title} | {' | '.join(_emphasised(cell) for cell in cells)} |"
            for title, cells in _rows(places, task, conditions, part)
        ]
        lines.append("")
    return "\n".join([*lines, *(f"* {note}" for note in NOTES)]).replace("* *:", "* **bold**:") + "\n"


def tasks_of(runs: Sequence[Run]) -> list[str]:
    """Return the tasks that were run, in the order of their first run."""
    return list(dict.fromkeys(run.task for run in runs))


def _title(runs: Sequence[Run], task: str) -> str:
    seeds = len({run.seed for run in runs})
    steps = max(run.steps for run in runs)
    return f"{task}, {steps} steps, {seeds} seed{'s' if seeds > 1 else ''}"


def _head(condition: str) -> str:
    words = CONDITIONS[condition].title.replace("1 %", "1\N{NO-BREAK SPACE}%").split(" ")
    return "\n".join(f"{word} " for word in words)


def _rows(places: Standing, task: str, conditions: Sequence[str], part: Part) -> Iterator[tuple[str, list[str]]]:
    names = _in_order((name for _, _, name in places), ENTRANTS)
    for name in names:
        found = [places.get((task, condition, name)) for condition in conditions]
        title = ENTRANTS[name].title if name in ENTRANTS else Path(name).stem[:18]
        yield title, ["" if place is None else part.cell(place) for place in found]


def _emphasised(cell: str) -> str:
    if cell.endswith(BEST):
        return f"**{cell.removesuffix(BEST)}**"
    return cell.strip()


def _in_order(found: Iterable[str], known: Collection[str]) -> list[str]:
    present = set(found)
    return [name for name in known if name in present] + sorted(present - set(known))
