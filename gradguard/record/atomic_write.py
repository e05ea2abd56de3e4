"""Files that are replaced whole, and folders whose names outlive a power failure."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, text: str, is_durable: bool = True) -> None:
    """Replace the file's content in one step: a reader or a crash sees the old text or the new one, whole.

    Args:
        path: of the file.
        text: its new content.
        is_durable: wait until the disk has it; else only a crash of the whole machine may lose it.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable where the file system can; some network ones refuse."""
    if os.name == "posix":
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
