"""The lines of `replay.jsonl`, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, get_args

from gradguard.audit.line import read_lines
from gradguard.audit.problem import MAX_PROBLEMS
from gradguard.printable import printable
from gradguard.record.exact import from_exact
from gradguard.record.replay import REPLAY_FILE, Kind


class Note(NamedTuple):
    """One line; see `gradguard.record.replay`."""

    row: int
    kind: str
    is_within: bool
    values: dict[str, Any]


def read_notes(path: Path) -> tuple[list[Note], list[str]] | None:
    """Return the notes of a run directory in their order and what could not be read; None for one without any.

    The last line may have been cut off by the end of the process; it is about a step whose row is missing, too.
    """
    if not (path / REPLAY_FILE).exists():
        return None
    notes, problems = [], []
    for line in read_lines(path / REPLAY_FILE):
        if not line.has_break:
            break
        try:
            if line.fields is None:
                raise ValueError(line.fault)
            told = line.fields
            row, kind, is_within = int(told.pop("row")), str(told.pop("kind")), bool(told.pop("within", False))
            if kind not in get_args(Kind):
                raise ValueError(f"unknown kind {kind!r}")
            notes.append(Note(row, kind, is_within, {name: from_exact(value) for name, value in told.items()}))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            problems.append(f"{line.place} cannot be read: {printable(str(error))[:200]}")
            if len(problems) >= MAX_PROBLEMS:
                break
    return notes, problems
