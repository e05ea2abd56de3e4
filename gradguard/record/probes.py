"""What probes saw, on disk: one JSON object a line, made with the first one.

    {"at":51,"kind":"updates","step":50,"update_norms":[0.0012,"NaN"],...}

A float32 is written so that it reads back to the same one: diagnoses that are run over the record find the same again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gradguard.probe_stats import Activations, Updates
from gradguard.record.encode import to_json


PROBES_FILE = "probes.jsonl"


class ProbesWriter:
    """Appends a line a probe, and has it written at once.

    Args:
        path: of the file; it is made for the first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def append(self, step: int, seen: Activations | Updates) -> None:
        """Write what a probe saw.

        Args:
            step: whose diagnoses were told.
            seen: by the probe.

        Raises:
            OSError: it could not be written.
        """
        if self._file is None:
            self._file = open(self._path, "x", encoding="ascii")
        kind = "activations" if isinstance(seen, Activations) else "updates"
        self._file.write(to_json({"at": step, "kind": kind, **_lists(dataclasses.asdict(seen))}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lists(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return value
