"""What probes saw, on disk: one JSON object a line, made with the first one.

    {"at":51,"kind":"updates","step":50,"update_norms":[0.0012,"NaN"],...,"prev":"<64 hex>","hash":"<64 hex>"}

A float32 is written so that it reads back to the same one: diagnoses that are run over the record find the same again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from gradguard.evidence.probe_stats import Activations, Updates
from gradguard.record.chain import LazyChain, first_link


PROBES_FILE = "probes.jsonl"


class ProbesWriter:
    """Appends a line a probe, and has it written at once.

    Args:
        path: of the file; it is made for the first line.
        run_id: of the run.

    Attributes:
        chain: writes the lines.
    """

    def __init__(self, path: Path, run_id: str = "") -> None:
        self.chain = LazyChain(path, first_link(f"{run_id} probes"))

    def append(self, step: int, seen: Activations | Updates) -> None:
        """Write what a probe saw.

        Args:
            step: whose diagnoses were told.
            seen: by the probe.

        Raises:
            OSError: it could not be written.
        """
        kind = "activations" if isinstance(seen, Activations) else "updates"
        self.chain.append({"at": step, "kind": kind, **_lists(dataclasses.asdict(seen))})

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self.chain.close()


def _lists(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return value
