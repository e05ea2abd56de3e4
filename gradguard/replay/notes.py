"""The lines of `replay.jsonl`, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, get_args

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
    try:
        text = (path / REPLAY_FILE).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    notes, problems = [], []
    *lines, _ = text.split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            told = json.loads(line)
            row, kind, is_within = int(told.pop("row")), str(told.pop("kind")), bool(told.pop("within", False))
            if kind not in get_args(Kind):
                raise ValueError(f"unknown kind {kind!r}")
            notes.append(Note(row, kind, is_within, {name: from_exact(value) for name, value in told.items()}))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            problems.append(f"{REPLAY_FILE}:{number} cannot be read: {error}")
    return notes, problems
