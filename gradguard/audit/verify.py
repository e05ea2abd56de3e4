"""Whether the files of a run are as they were written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gradguard.audit.chunks import Chunk
from gradguard.audit.columns import open_statistics_chunks
from gradguard.audit.gradients import open_gradient_chunks
from gradguard.audit.line import Line, NewerVersionError, read_lines
from gradguard.audit.locate import locate, read_info
from gradguard.audit.problem import Problem, ProblemKind
from gradguard.errors import RecordError
from gradguard.record.directory import GRADIENTS_FOLDER, INFO_FILE, JOURNAL_FILE, STATISTICS_FOLDER, policy_hash
from gradguard.record.journal import first_link, seal


def verify_run(path: str | os.PathLike[str], name: str | None = None) -> list[Problem]:
    """Check every line of the journal and every chunk of statistics.

    The hashes show that the journal and the policy were not edited after they were written, by accident or by someone
    who does not recompute them; of the statistics only the number and the order of rows is checked. They are no
    signature: whoever rewrites all of it, run.json included, is not found out.

    Args:
        path: the run directory.
        name: which guard's record, when several guards recorded there.

    Returns:
        The problems, in the order of the files; empty when there are none.

    Raises:
        RecordError: it is not a run directory, or a newer gradguard wrote it.
    """
    folder = locate(path, name)
    info = read_info(folder)
    problems: list[Problem] = []
    num_resumed = 0
    if (folder / JOURNAL_FILE).exists():
        lines = list(read_lines(folder / JOURNAL_FILE))
        problems += _check_lines(lines, str(info["run_id"]))
        problems += _check_end(lines, info)
        problems += _check_policy(lines, info)
        num_resumed = sum(line.fields is not None and line.fields.get("event") == "resumed" for line in lines)
    else:
        problems.append(Problem(kind="missing", file=JOURNAL_FILE, message="the journal is missing"))
    chunks, unread = open_statistics_chunks(folder, info.get("layouts"))
    problems += [*unread, *_check_rows(STATISTICS_FOLDER, chunks, unread, info, "num_rows", num_resumed)]
    chunks, unread = open_gradient_chunks(folder, info.get("layouts"))
    problems += [*unread, *_check_rows(GRADIENTS_FOLDER, chunks, unread, info, "num_gradients_rows", num_resumed)]
    return problems


def _check_lines(lines: list[Line], run_id: str) -> Iterator[Problem]:
    """Walk the chain; after a break it is taken up again from the line at hand, so that one edit is one problem."""
    prev, seq = first_link(run_id), 0
    for line in lines:
        if line.is_torn:
            yield _problem("torn", line, "cut off by the end of the process; the record before it is whole")
            continue
        if line.fields is None:
            yield _problem("foreign", line, "not a JSON object; it was not written by gradguard or was overwritten")
            continue
        if not _is_as_written(line):
            yield _problem("changed", line, "not as it was written: its content does not match its hash")
        else:
            try:
                line.record()
            except NewerVersionError:
                raise
            except RecordError as error:
                yield _problem("foreign", line, str(error).removeprefix(f"{line.place}: "))
        found = line.fields.get("seq")
        if line.prev != prev:
            moved = f"; its number is {found}, expected {seq}" if found != seq else ""
            yield _problem("chain", line, f"does not follow the line before it: lines were removed or moved{moved}")
        elif found != seq:
            yield _problem("gap", line, f"its number is {found}, expected {seq}")
        prev = line.hash
        seq = found + 1 if isinstance(found, int) else seq + 1


def _is_as_written(line: Line) -> bool:
    try:
        text, _ = seal(line.fields, line.prev)
    except (ValueError, RecursionError):  # nested deeper or holding other characters than any record
        return False
    return text == line.text


def _check_end(lines: list[Line], info: dict[str, Any]) -> Iterator[Problem]:
    """Compare with what was noted when the run closed: a chain by itself does not miss its last lines."""
    expected = info.get("num_records")
    whole = [line for line in lines if line.fields is not None]
    last = whole[-1].hash if whole else first_link(str(info["run_id"]))
    if expected is not None and last != info.get("last_hash"):
        message = f"ends differently from when the run closed ({len(whole)} records, then {expected})"
        yield Problem(kind="cut_off", file=JOURNAL_FILE, message=message)


def _check_policy(lines: list[Line], info: dict[str, Any]) -> Iterator[Problem]:
    """Compare the policy in run.json with its hash, which the first event sealed into the chain."""
    attached = next((line.fields for line in lines if line.fields and line.fields.get("event") == "attached"), {})
    data = attached.get("data")
    sealed = data.get("policy_sha256") if isinstance(data, dict) else None
    if sealed is not None and sealed != policy_hash(info.get("policy")):
        yield Problem(kind="changed", file=INFO_FILE, message="the policy is not the one that the run started with")


def _check_rows(
    folder: str, chunks: list[Chunk], unread: list[Problem], info: dict[str, Any], count: str, num_resumed: int
) -> Iterator[Problem]:
    """Look for missing chunks, missing rows and rows out of order; `count` names the number of rows in run.json."""
    stems = [Path(file).stem for file in (*(chunk.file for chunk in chunks), *(item.file for item in unread))]
    numbers = [int(stem) for stem in stems if stem.isdecimal()]
    for missing in sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers)):
        file = f"{folder}/{missing:06d}.npy"
        yield Problem(kind="missing", file=file, message="the chunk is missing")
    num_rows = sum(len(chunk.rows) for chunk in chunks)
    is_damage_told = unread or any(chunk.num_spare_bytes for chunk in chunks)
    if not is_damage_told and (expected := info.get(count)) is not None and num_rows != expected:
        message = f"{num_rows} rows, {expected} when the run closed"
        yield Problem(kind="missing" if num_rows < expected else "statistics", file=folder, message=message)
    if lost := info.get(f"{count}_lost"):
        yield Problem(kind="missing", file=folder, message=f"{lost} rows that the disk did not take")
    last = None
    for chunk in chunks:
        if spare := chunk.num_spare_bytes:
            message = f"{spare} bytes of a row that was cut off by the end of the process"
            yield Problem(kind="torn", file=chunk.file, message=message)
        steps = chunk.rows["step"]
        if not len(steps):
            continue
        before = np.concatenate([steps[:1] - 1 if last is None else [last], steps[:-1]])
        for row in np.flatnonzero(steps <= before):
            num_resumed -= 1  # loading an earlier state sets the steps back, and leaves an event
            if num_resumed < 0:
                message = f"row {row}: step {steps[row]} comes after step {before[row]}"
                yield Problem(kind="statistics", file=chunk.file, message=message)
        last = steps[-1]


def _problem(kind: ProblemKind, line: Line, message: str) -> Problem:
    return Problem(kind=kind, file=JOURNAL_FILE, line=line.number, message=message)
