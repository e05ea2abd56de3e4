"""One line of a chained file, as bytes and as what it says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gradguard.audit.bounded_json import parse
from gradguard.audit.regular_file import open_regular
from gradguard.errors import RecordError
from gradguard.printable import printable
from gradguard.record.chain import MAX_LINE_BYTES
from gradguard.records import AnyRecord


_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)
JOURNAL_VERSION = 1
MAX_SKIPPED_BYTES = 1 << 32  # of a file in which a line does not end
_TAIL = re.compile(rb',"prev":"([0-9a-f]{64})","hash":"([0-9a-f]{64})"\}')
_TAIL_BYTES = len(',"prev":"","hash":""}') + 128


class NewerVersionError(RecordError):
    """The record was written by a newer gradguard."""


def check_version(version: object, place: str, newest: int = JOURNAL_VERSION) -> None:
    """Refuse what a newer gradguard wrote.

    Args:
        version: as it is written there.
        place: where, for the message.
        newest: that is read here.

    Raises:
        NewerVersionError: the version is above the one that is read here.
    """
    if isinstance(version, int) and version > newest:
        raise NewerVersionError(
            f"{place}: written by a newer gradguard (record version {version}; this one reads up to {newest}); "
            f"upgrade gradguard to read it"
        )


class Line:
    """One line.

    Attributes:
        file: name below the run directory.
        number: from 1.
        data: without its line break.
        fields: the JSON object without `prev` and `hash`; None when the line is not one.
        prev: as written, or "".
        hash: as written, or "".
        fault: why `fields` is None, else "".
        has_break: the line ends with a line break.
        is_torn: the last line, cut off in the middle by the end of the process.
    """

    def __init__(self, file: str, number: int, data: bytes, fault: str = "") -> None:
        self.file = file
        self.number = number
        self.data = data.removesuffix(b"\n")
        self.has_break = len(self.data) < len(data)
        self.fields: dict[str, Any] | None = None
        self.fault = fault
        if not fault:
            try:
                value = parse(self.data)
                self.fault = "" if isinstance(value, dict) else "not a JSON object"
            except ValueError as error:
                value = None
                self.fault = f"not a record: {error}" if type(error) is ValueError else "not a JSON object"
            if isinstance(value, dict):
                self.fields = value
        self.is_torn = self.fields is None and not self.has_break and not fault
        self.prev = str(self.fields.pop("prev", "")) if self.fields is not None else ""
        self.hash = str(self.fields.pop("hash", "")) if self.fields is not None else ""

    @property
    def place(self) -> str:
        """`file:line`, for messages."""
        return f"{self.file}:{self.number}"

    def is_as_written(self) -> bool:
        """Whether the content of the line matches its own hash."""
        tail = _TAIL.fullmatch(self.data[-_TAIL_BYTES:])
        if tail is None or len(self.data) < _TAIL_BYTES:
            return False
        body = self.data[:-_TAIL_BYTES] + b"}"
        return hashlib.sha256(tail[1] + body).hexdigest().encode() == tail[2]

    def record(self) -> AnyRecord:
        """Return the record.

        Raises:
            RecordError: the line is not a record, or one of a newer version.
        """
        if self.fields is None:
            raise RecordError(f"{self.place}: {self.fault}")
        check_version(self.fields.get("v"), self.place)
        try:
            return _RECORD.validate_python(self.fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "record"
            text = printable(f"{where}: {first['msg']}")[:200]
            raise RecordError(f"{self.place}: not a record of gradguard: {text}") from None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a chained file, one at a time; none when there is no such file.

    Raises:
        RecordError: the file cannot be opened.
    """
    try:
        with open_regular(path) as file:
            number = 0
            while data := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(data) <= MAX_LINE_BYTES:
                    yield Line(path.name, number, data)
                    continue
                while data and not data.endswith(b"\n") and file.tell() < MAX_SKIPPED_BYTES:
                    data = file.readline(MAX_LINE_BYTES)
                yield Line(path.name, number, data[-1:], f"not a record: longer than {MAX_LINE_BYTES:,} bytes")
                if data and not data.endswith(b"\n"):
                    return
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
