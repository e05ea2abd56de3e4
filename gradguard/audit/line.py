"""One line of the journal, as text and as a record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gradguard.errors import RecordError
from gradguard.record.directory import INFO_VERSION, JOURNAL_FILE
from gradguard.records import AnyRecord


_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


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


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a journal; none when there is no such file.

    Raises:
        RecordError: the file cannot be opened.
    """
    if not path.exists():
        return
    try:
        with open(path, "rb") as file:
            for number, data in enumerate(file, start=1):
                yield Line(number, data.removesuffix(b"\n"), is_last=not data.endswith(b"\n"))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
