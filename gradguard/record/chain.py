"""A file of JSON lines, each sealed over the line before it, so that a change shows by reading the file.

    {...,"prev":"<64 hex>","hash":"<64 hex>"}        hash = sha256 of prev, followed by the line's text without both

The journal, what probes saw and the seals are such files.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from gradguard.record.encode import to_json
from gradguard.records import Frozen


MAX_LINE_BYTES = 8 * 1024 * 1024  # a reader refuses longer lines, so that none can fill the memory


class ReplacedError(OSError):
    """The run directory was deleted or replaced while the run goes on."""


def first_link(run_id: str) -> str:
    """Return the `prev` of a file's first line, so that lines of one run or file do not pass for another's."""
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


class SealedLines(Frozen):
    """How far a chain of lines has come.

    Args:
        lines: so many.
        hash: of the last one; before the first one, what that is chained to.
    """

    lines: int
    hash: str


class ChainWriter:
    """Appends sealed lines; the only writer of its file.

    A line that fails half-written is cut off again, so what is on disk is always a whole number of lines, except when
    the process dies inside a write: then the last line alone is torn, and the reader says so.

    Args:
        path: file to create.
        prev: what the first line is chained to, see `first_link`.

    Attributes:
        num_lines: lines written.
        last_hash: of the last line, or `prev`.

    Raises:
        FileExistsError: the file is there already; it is never continued or overwritten.
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path, prev: str) -> None:
        self.path = path
        self.num_lines = 0
        self.last_hash = prev
        self._size = 0
        self._is_torn = False
        # Unbuffered and in append mode: one record is one os.write at the end of the file.
        self._file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o644))
        self._made = os.fstat(self._file.fileno())

    @property
    def state(self) -> SealedLines:
        """How far it has come."""
        return SealedLines(lines=self.num_lines, hash=self.last_hash)

    def append(self, fields: Any, durable: bool = False) -> None:
        """Write one line.

        Args:
            fields: what it says.
            durable: wait until it is on the disk (fsync), so that it outlives a power failure.

        Raises:
            ReplacedError: the file is not where it was made.
            OSError: the line could not be written; the file holds what it held before, and the next one may succeed.
            ValueError: the file is closed.
        """
        line, digest = seal(fields, self.last_hash)
        data = line.encode("ascii") + b"\n"
        self.check_place()
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
        self.num_lines += 1
        self.last_hash = digest

    def check_place(self) -> None:
        """Make sure that what is written can be found: a deleted file takes all that it is given, and keeps nothing.

        Raises:
            ReplacedError: the file was deleted or replaced.
        """
        try:
            is_here = os.path.samestat(os.stat(self.path), self._made)
        except OSError:
            is_here = False
        if not is_here:
            raise ReplacedError(f"{self.path.parent} was deleted or replaced: nothing more of this run is recorded")

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    def _cut(self) -> None:
        self._file.truncate(self._size)
        self._is_torn = False


class LazyChain:
    """A chain of lines whose file is made with the first one.

    Args:
        path: file to create.
        prev: see `ChainWriter`.
    """

    def __init__(self, path: Path, prev: str) -> None:
        self._path = path
        self._prev = prev
        self._chain: ChainWriter | None = None

    @property
    def state(self) -> SealedLines:
        """How far it has come."""
        return SealedLines(lines=0, hash=self._prev) if self._chain is None else self._chain.state

    @property
    def num_lines(self) -> int:
        """Lines that were written."""
        return 0 if self._chain is None else self._chain.num_lines

    def append(self, fields: Any) -> None:
        """Write one line; see `ChainWriter.append`."""
        if self._chain is None:
            self._chain = ChainWriter(self._path, self._prev)
        self._chain.append(fields)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._chain is not None:
            self._chain.close()
