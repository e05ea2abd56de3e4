"""The journal of a run that goes on: each call reads what was written since the one before."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from gradguard.audit.line import Line, NewerVersionError
from gradguard.errors import RecordError
from gradguard.records import AnyRecord


TAIL_BYTES = 256 * 1024  # of a long journal at the first call: some hundred records
BLOCK_BYTES = 4 * 1024 * 1024  # at most so much in one call; a longer line is none of gradguard's


class JournalTail:
    """Follows one journal. The file is opened afresh each time: a network file system then shows what is new in it.

    Args:
        path: of the journal; it need not be there yet.

    Attributes:
        num_unreadable: lines that are no records, as far as they were read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_unreadable = 0
        self._offset: int | None = None  # behind the last whole line that was read; None before the first call

    def poll(self) -> list[AnyRecord]:
        """Return the records that are new, at the first call the last ones; a line that is half-written waits.

        Raises:
            NewerVersionError: a newer gradguard writes there.
        """
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, 2)
                if self._offset is None or size < self._offset:  # never read, or another file by now
                    self._offset = _start_of_tail(file, size)
                file.seek(self._offset)
                data = file.read(BLOCK_BYTES)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if not end and len(data) == BLOCK_BYTES:
            self.num_unreadable += 1
            end = len(data)
        self._offset += end
        return [record for line in data[:end].splitlines() if (record := self._record(line)) is not None]

    def _record(self, data: bytes) -> AnyRecord | None:
        try:
            return Line(self.path.name, 0, data + b"\n").record()
        except NewerVersionError:
            raise
        except RecordError:
            self.num_unreadable += 1
            return None


def _start_of_tail(file: BinaryIO, size: int) -> int:
    """Return where the first whole line of the last `TAIL_BYTES` begins."""
    if size <= TAIL_BYTES:
        return 0
    file.seek(size - TAIL_BYTES)
    return size - TAIL_BYTES + file.read(TAIL_BYTES).find(b"\n") + 1
