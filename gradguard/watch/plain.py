"""A run as it goes on, in lines: one for each thing that happens, for files and pipes."""

from __future__ import annotations

from datetime import datetime

from gradguard.cli.render import number
from gradguard.outcomes.verdict import WORDS
from gradguard.printable import printable
from gradguard.records import Outcome
from gradguard.watch.entries import entry_of
from gradguard.watch.screen import behind
from gradguard.watch.verdict import verdict
from gradguard.watch.watcher import View


def headline(view: View) -> str:
    """Return which run it is and how it stands."""
    mode = ", only watching (mode: observe)" if view.mode == "observe" else ""
    return printable(f"{view.path}: {view.status}, {_state(view)}{mode}. {verdict(view)[0]}")


def event_lines(view: View) -> list[str]:
    """Return a line for each record that came since the look before and that a person should hear of."""
    lines = []
    for record in view.new:
        if isinstance(record, Outcome):
            done_at = record.step - record.horizon
            words = f"what was done at step {done_at:,}: {WORDS[record.verdict]}. {record.reason}".rstrip(" .")
        elif (entry := entry_of(record)) is not None:
            words = entry.head + (f" -> {entry.done}" if entry.done else "")
            words += f". {entry.message}" if entry.message else ""
        else:
            continue
        lines.append(printable(f"{_clock(record.time)}step {record.step:,}: {words}"))
    return lines


def progress_line(view: View) -> str:
    """Return where the run is, for when nothing happens for a while."""
    return printable(f"{datetime.now():%H:%M:%S} {_state(view)}, {behind(view)}")


def last_line(view: View) -> str:
    """Return how the run ended."""
    return printable(f"{view.status}: {view.last_word}" if view.last_word else view.status)


def _state(view: View) -> str:
    if not len(view.scalars):
        return "no step yet"
    row = view.scalars[-1]
    parts = [f"step {int(row['step']):,}", f"loss {number(float(row['loss']))}"]
    parts.append(f"gradient norm {number(float(row['global_norm']))}")
    if view.rate is not None:
        parts.append(f"{view.rate:,.3g} steps/s")
    return ", ".join(parts)


def _clock(time: str) -> str:
    """Return the local time of day of a record, "" when it has none."""
    try:
        return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S} "
    except (ValueError, OverflowError, OSError):
        return ""
