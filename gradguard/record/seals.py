"""What the other files of a run hold, said now and then in a chain of its own, so that a change of any of them shows.

seals.jsonl    {"v":1,"seq":3,"time":"...","lines":{"interventions.jsonl":{"lines":17,"hash":"..."}},"rows":[...],...}

A chain by itself does not miss its last lines, and rows of numbers have none: a seal names the number of lines and the
last hash of each chain, and the sha256 of the rows written since the seal before. The hash of the last seal, the head
of the record, therefore stands for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from pydantic import Field

from gradguard.record.chain import ChainWriter, SealedLines, first_link
from gradguard.records import Frozen


SEALS_FILE = "seals.jsonl"
SEAL_ROWS = 1024  # rows of statistics from which a new seal is due: 0.4 bytes a step


class SealedRows(Frozen):
    """Rows of one chunk.

    Args:
        file: name below the run directory.
        start: first row.
        stop: row after the last.
        sha256: of their bytes, 64 hex digits.
    """

    file: str
    start: int = Field(ge=0, le=2**40)
    stop: int = Field(ge=1, le=2**40)
    sha256: str


class Seal(Frozen):
    """What was on the disk at one moment.

    Args:
        v: version of the schema.
        seq: position in the file, from 0 without gaps.
        time: UTC, ISO 8601.
        lines: of each chained file, by its name.
        rows: of statistics and gradients, those that no seal before this one covers.
        info: sha256 of `run.json`, which is written just after.
        is_last: the run was closed with this seal.
    """

    v: int = 1
    seq: int
    time: str
    lines: dict[str, SealedLines]
    rows: tuple[SealedRows, ...] = ()
    info: str
    is_last: bool = False


class SealsWriter:
    """Appends seals.

    Args:
        path: file to create.
        run_id: of the run.

    Raises:
        OSError: the file is there already or cannot be created.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.chain = ChainWriter(path, first_link(f"{run_id} seals"))

    def append(self, lines: Mapping[str, SealedLines], rows: tuple[SealedRows, ...], info: str, is_last: bool) -> None:
        """Write one; the last one waits for the disk.

        Raises:
            OSError: it could not be written.
            ValueError: the file is closed.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        seq = self.chain.num_lines
        seal = Seal(seq=seq, time=now, lines=dict(lines), rows=rows, info=info, is_last=is_last)
        self.chain.append(seal.model_dump(), durable=is_last)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self.chain.close()
