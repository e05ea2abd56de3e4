"""What happened, newest first: what was found, what was done about it, and whether it helped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gradguard.audit.responses import TELLS
from gradguard.cli.render import text
from gradguard.outcomes.main_remedy import main_first
from gradguard.watch.entries import Entry, verdicts


INDENT = 2  # of what stands below a finding
COLORS = {"info": "cyan", "warn": "yellow", "critical": "red"}
VERDICT_COLORS = {"worse": "red", "no_effect": "yellow", "unknown": "", "helped": "green"}  # the worst first
MEASURE = Console(markup=False, emoji=False, highlight=False)  # knows how text wraps


def happened(entries: Sequence[Entry], width: int, room: int | None, arrow: str = "->") -> list[RenderableType]:
    """Return what is to be printed of entries, as far as there is room.

    Args:
        entries: oldest first.
        width: columns.
        room: lines; None for as many as it takes.
        arrow: what leads to what was done.
    """
    if room is not None and room < 2:
        return []
    if not entries:
        return [Text("Nothing found or done so far.", "dim")]
    shown: list[RenderableType] = [Text("What happened, newest first", "bold")]
    used = 1
    for _, members in groupby(reversed(entries), key=lambda entry: (entry.first_step, entry.last_step, entry.head)):
        entries = list(members)[::-1]
        left = None if room is None else room - used
        told = next((form for form in _forms(entries, arrow) if left is None or height_of(form, width) <= left), None)
        if told is None:
            break
        shown += told
        used += height_of(told, width)
    return shown


def _forms(entries: list[Entry], arrow: str) -> Iterator[list[RenderableType]]:
    """Yield ways to tell it, from long to short."""
    yield _told(entries, arrow)
    yield _told([replace(entry, message="", judged="") for entry in entries], arrow)
    yield _told(entries, arrow)[:1]


def height_of(parts: Sequence[RenderableType], width: int) -> int:
    """Return how many lines something takes."""
    return len(MEASURE.render_lines(Group(*parts), MEASURE.options.update_width(width)))


def _told(entries: list[Entry], arrow: str) -> list[RenderableType]:
    """Return what was found once, all that was done about it, and what became of it; the same verdict is said once."""
    entries = _main_first(entries)
    first = entries[0]
    at = f"step {first.first_step:,}"
    if first.last_step != first.first_step:
        at = f"steps {first.first_step:,}-{first.last_step:,}"
    head = Text.assemble((f"{at} ", "dim"), text(first.head, style=f"bold {COLORS.get(first.severity, '')}"))
    if first.count > 1:
        head.append(f", {first.count:,} times")
    below = [text(first.message, style="dim")] if first.message else []
    judged: Text | None = None
    for entry in entries:
        verdict = _judged(entry)
        if judged is not None and verdict != judged:
            below.append(judged)
        if entry.done:
            below.append(Text(f"{arrow} ").append_text(text(entry.done)))
        judged = verdict
    below += [judged] if judged is not None else []
    return [head, *(Padding(line, (0, 0, 0, INDENT)) for line in below)]


def _main_first(entries: list[Entry]) -> list[Entry]:
    """Return what was done in the order of its weight; a warning is left out where something was done as well."""
    order = main_first(entry.remedy for entry in entries)
    acts = [entry for entry in entries if not (entry.is_done and entry.remedy == TELLS)]
    return sorted(acts or entries, key=lambda entry: order.index(entry.remedy))


def _judged(entry: Entry) -> Text | None:
    verdict = verdicts(entry)
    if not verdict:
        return None
    color = next((color for name, color in VERDICT_COLORS.items() if name in entry.outcomes), "")
    last = "; the last: " if sum(entry.outcomes.values()) > 1 else ": "
    return Text.assemble((verdict, f"bold {color}"), text(last + entry.judged if entry.judged else ""))
