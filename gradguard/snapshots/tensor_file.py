"""Files of tensors: written in one step, and read without running any code that they might hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from gradguard.errors import RecordError
from gradguard.record.atomic_write import sync_folder


def write_tensors(path: Path, contents: dict[str, Any]) -> int:
    """Write nested tensors, numbers and words to a file that is there whole or not at all; return its size, bytes.

    Args:
        path: of the file; its folder is made when missing.
        contents: what `torch.load(path, weights_only=True)` gives back.

    Raises:
        OSError: it could not be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        size = temporary.stat().st_size
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, RuntimeError):  # torch's writer says so when the disk is full
            raise OSError(f"{path} could not be written: {error}") from error
        raise
    sync_folder(path.parent)
    return size


def read_tensors(path: Path) -> dict[str, Any]:
    """Return what `write_tensors` wrote, on the CPU; parts are read from the file when they are first needed.

    Raises:
        RecordError: the file is missing or damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a" / "b.pt"
        ...     _ = write_tensors(path, {"step": 3, "weight": torch.ones(2)})
        ...     read_tensors(path)
        {'step': 3, 'weight': tensor([1., 1.])}
    """
    try:
        contents: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged archive or stream raises one of many kinds
        raise RecordError(f"{path} cannot be read: {error}") from error
    return contents
