"""A snapshot in a file of its own."""

from __future__ import annotations

import contextlib
from itertools import count
from pathlib import Path
from typing import Any

from gradguard.snapshots.snapshot import Snapshot
from gradguard.snapshots.tensor_file import read_tensors, write_tensors


class SnapshotFile:
    """Stands for a snapshot that was written to disk.

    Args:
        folder: where; the file is named after the step, and has a number if there is one of that name.
        snapshot: it is written at once.

    Raises:
        OSError: it could not be written; nothing is left behind.

    Attributes:
        step: of the snapshot.
        path: of the file.
    """

    def __init__(self, folder: Path, snapshot: Snapshot) -> None:
        self.step = snapshot.step
        names = (f"step-{snapshot.step:08d}{f'-{number}' if number > 1 else ''}.pt" for number in count(1))
        self.path = next(folder / name for name in names if not (folder / name).exists())
        write_tensors(self.path, snapshot.state_dict())

    def read(self) -> Snapshot:
        """Return the snapshot.

        Raises:
            RecordError: the file is missing or damaged.
        """
        return Snapshot.from_state_dict(read_tensors(self.path))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the file holds."""
        return self.read().state_dict()

    def let_go(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()
