"""The append-only journal of a run: one JSON object a line, numbered without gaps and chained by hashes.

A line is sealed over the line before it, so a changed, removed, moved or inserted line is found by reading the file:

    {"v":1,"seq":0,"time":"...","step":12,"kind":"intervention",...,"prev":"<64 hex>","hash":"<64 hex>"}
"""

from __future__ import annotations

import hashlib
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from gradguard.record.encode import to_json
from gradguard.records import Record


R = TypeVar("R", bound=Record)


def first_link(run_id: str) -> str:
    """Return the `prev` of a run's first line, so that lines of one run do not pass for another's."""
    return hashlib.sha256(f"gradguard run {run_id}".encode("utf-8", "backslashreplace")).hexdigest()


def seal(fields: Any, prev: str) -> tuple[str, str]:
    """Return the line that records `fields` after the line with hash `prev`, and the hash of this line.

    Args:
        fields: what is recorded, without `prev` and `hash`; the order of the keys counts.
        prev: 64 hex digits.

    Returns:
        (line without its line break, hash = sha256 of prev followed by the JSON text of `fields`).
    """
    body = to_json(fields)
    digest = hashlib.sha256((prev + body).encode("ascii")).hexdigest()
    return f'{body[:-1]},"prev":"{prev}","hash":"{digest}"}}', digest


class Journal:
    """Writes the records of one run; the only writer of its file.

    A line that fails half-written is cut off again, so what is on disk is always a whole number of lines, except when
    the process dies inside a write: then the last line alone is torn, and the reader says so.

    Args:
        path: file to create.
        run_id: what the first line is chained to.

    Raises:
        FileExistsError: the file is there already; a journal is never continued or overwritten.
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path, run_id: str = "") -> None:
        self.path = path
        self.num_records = 0
        self.last_hash = first_link(run_id)
        self._size = 0
        self._is_torn = False
        # Unbuffered and in append mode: one record is one os.write at the end of the file.
        self._file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o644))

    def append(self, record: R, durable: bool = True) -> R:
        """Write one record and return it as written, with its `seq` and `time`.

        Args:
            record: `seq` and `time` are filled in here.
            durable: wait until the line is on the disk (fsync), so that it outlives a power failure.

        Raises:
            OSError: the line could not be written; the file holds what it held before, and the next append may succeed.
            ValueError: the journal is closed.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        record = record.model_copy(update={"seq": self.num_records, "time": now})
        line, digest = seal(record.model_dump(exclude={"outcome"}), self.last_hash)
        data = line.encode("ascii") + b"\n"
        if self._is_torn:
            self._cut()
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(f"{self.path}: the disk took {written} of {len(data)} bytes of a record")
            if durable:
                os.fsync(self._file.fileno())
        except OSError:
            self._is_torn = True
            self._cut()
            raise
        self._size += len(data)
        self.num_records += 1
        self.last_hash = digest
        return record

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    def _cut(self) -> None:
        self._file.truncate(self._size)
        self._is_torn = False
