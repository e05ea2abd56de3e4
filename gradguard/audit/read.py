"""A recorded run as Python objects and numpy arrays.

Reading is forgiving, because a record is needed most after a crash: what cannot be read is skipped and listed in
`Run.problems`. `verify_run` is the strict reader.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gradguard.audit.columns import Columns, all_parameters, open_chunks
from gradguard.audit.problem import Problem
from gradguard.errors import RecordError, did_you_mean
from gradguard.record.directory import INFO_FILE, INFO_VERSION, JOURNAL_FILE, STATISTICS_FOLDER
from gradguard.record.encode import to_json
from gradguard.records import AnyRecord, Event, Finding, Intervention, Outcome, Withheld


MAX_HINTS = 5  # runs named in an error message
HINT_DEPTH = 3  # folders deep that they are looked for
_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


class Line:
    """One line of the journal.

    Attributes:
        number: from 1.
        text: without its line break.
        fields: the JSON object without `prev` and `hash`; None when the line is not one.
        prev: as written, or "".
        hash: as written, or "".
        is_torn: the last line, cut off in the middle by the end of the process.
    """

    def __init__(self, number: int, data: bytes, is_last: bool) -> None:
        self.number = number
        self.text = data.decode("utf-8", "backslashreplace")
        self.fields: dict[str, Any] | None = None
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            self.fields = value
        self.is_torn = is_last and self.fields is None
        self.prev = str(self.fields.pop("prev", "")) if self.fields is not None else ""
        self.hash = str(self.fields.pop("hash", "")) if self.fields is not None else ""

    @property
    def place(self) -> str:
        """`file:line`, for messages."""
        return f"{JOURNAL_FILE}:{self.number}"

    def record(self) -> AnyRecord:
        """Return the record.

        Raises:
            RecordError: the line is not a record, or one of a newer version.
        """
        if self.fields is None:
            raise RecordError(f"{self.place}: not a JSON object")
        check_version(self.fields.get("v"), self.place)
        try:
            return _RECORD.validate_python(self.fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "record"
            raise RecordError(f"{self.place}: not a record of gradguard: {where}: {first['msg']}") from None


class NewerVersionError(RecordError):
    """The record was written by a newer gradguard."""


def check_version(version: object, place: str) -> None:
    """Refuse what a newer gradguard wrote.

    Raises:
        NewerVersionError: the version is above the one that is read here.
    """
    if isinstance(version, int) and version > INFO_VERSION:
        raise NewerVersionError(
            f"{place}: written by a newer gradguard (record version {version}; this one reads up to {INFO_VERSION}); "
            f"upgrade gradguard to read it"
        )


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a journal.

    Raises:
        RecordError: the file cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            for number, data in enumerate(file, start=1):
                yield Line(number, data.removesuffix(b"\n"), is_last=not data.endswith(b"\n"))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_info(path: Path) -> dict[str, Any]:
    """Return what `run.json` of a run directory says.

    Raises:
        RecordError: the path is not a run directory (runs near it are named), or its `run.json` cannot be read.
    """
    try:
        info = json.loads((path / INFO_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(_not_a_run(path)) from None
    except OSError as error:
        raise RecordError(f"{path / INFO_FILE}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise RecordError(f"{path / INFO_FILE}: not valid JSON; the run ended before it was set up") from None
    if not isinstance(info, dict) or "run_id" not in info:
        raise RecordError(f"{path / INFO_FILE}: not the facts of a run (no run_id)")
    check_version(info.get("v"), str(path / INFO_FILE))
    return info


def run_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the guards that recorded under a run directory, sorted; without the unnamed one."""
    folder = Path(path)
    return sorted(entry.parent.name for entry in folder.glob(f"*/{INFO_FILE}")) if os.path.isdir(folder) else []


def locate(path: str | os.PathLike[str], name: str | None = None) -> Path:
    """Return the directory that holds the files of the guard meant.

    Args:
        path: a run directory.
        name: the guard's name; not needed when there is one guard.

    Raises:
        RecordError: it is not a run directory, or it is not clear which guard is meant.
    """
    folder = Path(path)
    names = run_names(folder)
    if name is not None:
        if name not in names:
            raise RecordError(f"{folder}: no guard named {name!r} recorded here{did_you_mean(name, names)}")
        return folder / name
    if not names or os.path.exists(folder / INFO_FILE):
        return folder
    if len(names) > 1:
        raise RecordError(f"{folder}: several guards recorded here, say which by name: {', '.join(names)}")
    return folder / names[0]


class Run:
    """One guard's record of one run; made by `read_run`.

    Attributes:
        path: the directory of its files.
        info: what `run.json` says.
        records: every record in order; interventions carry their outcome.
        problems: what could not be read.
        is_torn: the last line was cut off by the end of the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = read_info(path)
        self.is_torn = False
        self.problems: list[Problem] = []
        records = []
        for line in read_lines(path / JOURNAL_FILE):
            if line.is_torn:
                self.is_torn = True
                continue
            try:
                records.append(line.record())
            except NewerVersionError:
                raise
            except RecordError as error:
                text = str(error).removeprefix(f"{line.place}: ")
                self.problems.append(Problem(kind="foreign", file=JOURNAL_FILE, line=line.number, message=text))
        outcomes = {record.of: record for record in records if isinstance(record, Outcome)}
        self.records: tuple[AnyRecord, ...] = tuple(
            record.model_copy(update={"outcome": outcomes.get(record.seq)})
            if isinstance(record, Intervention)
            else record
            for record in records
        )
        layouts = self.info.get("layouts")
        chunks, problems = open_chunks(path / STATISTICS_FOLDER, layouts)
        self.problems += problems
        self._columns = Columns(chunks, all_parameters(layouts))

    @property
    def statistics(self) -> Columns:
        """Arrays over the S recorded steps by name: "step", "loss", ..., (S,), and "norms" (S, P)."""
        return self._columns

    @property
    def parameters(self) -> list[str]:
        """Names of the P columns of `norms`, in the order of their first appearance."""
        return self._columns.parameters

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that was in force, all defaults filled in."""
        policy = self.info.get("policy")
        return policy if isinstance(policy, dict) else {}

    @property
    def status(self) -> str:
        """How the run ended: "closed", "stopped", "failed", "running", or "interrupted" when its process died."""
        status = str(self.info.get("status", "unknown"))
        return "interrupted" if status == "running" and not self._may_be_alive() else status

    @cached_property
    def findings(self) -> list[Finding]:
        """Every finding once, in order, acted on or not."""
        found = {
            to_json(record.finding): record.finding
            for record in self.records
            if isinstance(record, (Intervention, Withheld)) and record.finding is not None
        }
        return list(found.values())

    @cached_property
    def interventions(self) -> list[Intervention]:
        """Every action, in order, with its outcome where it was judged."""
        return [record for record in self.records if isinstance(record, Intervention)]

    @cached_property
    def withheld(self) -> list[Withheld]:
        """Every action that was due and not carried out, in order."""
        return [record for record in self.records if isinstance(record, Withheld)]

    @cached_property
    def events(self) -> list[Event]:
        """Everything else that was noted, in order."""
        return [record for record in self.records if isinstance(record, Event)]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self.records)} records, {self.statistics.num_steps} steps)"

    def _may_be_alive(self) -> bool:
        if os.name != "posix" or self.info.get("host") != socket.gethostname():
            return True  # not to be told from here
        try:
            os.kill(int(self.info["pid"]), 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError, KeyError, TypeError, ValueError):
            return True
        return True


def read_run(path: str | os.PathLike[str], name: str | None = None) -> Run:
    """Read the record of a run, finished or not.

    Args:
        path: the run directory.
        name: which guard's record, when several guards recorded there.

    Raises:
        RecordError: it is not a run directory, several guards recorded there, or a newer gradguard wrote it.
    """
    return Run(locate(path, name))


def _not_a_run(path: Path) -> str:
    if not os.path.exists(path):
        what, below = "does not exist", path.parent
    elif os.path.isfile(path):
        what, below = "is a file; give the run directory", path.parent
    else:
        what, below = f"is not a run directory (no {INFO_FILE})", path
    near: list[str] = []
    for depth in range(HINT_DEPTH + 1):
        near += sorted(str(entry.parent) for entry in below.glob("*/" * depth + INFO_FILE))
    hint = f"; runs near it: {', '.join(near[:MAX_HINTS])}" if near else ""
    return f"{path} {what}{hint}{', ...' if len(near) > MAX_HINTS else ''}"
