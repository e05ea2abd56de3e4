"""The append-only journal of a run: one JSON object a line, numbered without gaps and chained by hashes.

{"v":1,"seq":0,"time":"...","step":12,"kind":"intervention",...,"prev":"<64 hex>","hash":"<64 hex>"}
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from gradguard.record.chain import ChainWriter, first_link
from gradguard.records import Record


R = TypeVar("R", bound=Record)


class Journal:
    """Writes the records of one run.

    Args:
        path: file to create.
        run_id: what the first line is chained to.

    Attributes:
        chain: writes the lines.

    Raises:
        FileExistsError: the file is there already; a journal is never continued or overwritten.
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path, run_id: str = "") -> None:
        self.path = path
        self.chain = ChainWriter(path, first_link(run_id))

    @property
    def num_records(self) -> int:
        """Records written."""
        return self.chain.num_lines

    @property
    def last_hash(self) -> str:
        """Hash of the last record, or what the first one is chained to."""
        return self.chain.last_hash

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
        self.chain.append(record.model_dump(exclude={"outcome"}), durable=durable)
        return record

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self.chain.close()
