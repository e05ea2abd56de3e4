"""What probes saw, on disk: one JSON object a line, made with the first one.

    {"at":51,"kind":"updates","update_norms":{"f4":"<base64>"},"weight_norms":{"note":3},...,"prev":...,"hash":...}
    {"at":101,"kind":"updates","like":2,"update_norms":{"f4":"<base64>"},...}

`f4` holds float32, little endian, so that diagnoses that are run over the record find the same again; `f4z` the same
where that is shorter: a zlib stream of their first bytes, their second ones, ... Norms of weights
stand in the notes for a replay already: `note` is the line of replay.jsonl, from 1. A field that is left out is as in
the line `like` of this file, from 1.
"""

from __future__ import annotations

import base64
import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gradguard.evidence.probe_stats import Activations, Updates
from gradguard.evidence.stats import FloatArray
from gradguard.record.chain import LazyChain, first_link
from gradguard.record.replay import NotedWeights


PROBES_FILE = "probes.jsonl"
WHOLE_EVERY = 20  # lines of a kind; a damaged line costs those that are like it


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
        self._whole: dict[str, tuple[int, dict[str, Any]]] = {}  # by kind: the last line without `like`
        self._num_like: dict[str, int] = {}

    def append(self, step: int, seen: Activations | Updates, noted: NotedWeights | None = None) -> None:
        """Write what a probe saw.

        Args:
            step: whose diagnoses were told.
            seen: by the probe.
            noted: the norms of weights that were noted last.

        Raises:
            OSError: it could not be written.
        """
        kind = "activations" if isinstance(seen, Activations) else "updates"
        told = _plain(dataclasses.asdict(seen))
        if isinstance(seen, Updates) and noted is not None and noted.are(seen.weight_norms):
            told["weight_norms"] = {"note": noted.line}
        head = {"at": step, "kind": kind}
        if kind in self._whole and self._num_like[kind] < WHOLE_EVERY - 1:
            line, whole = self._whole[kind]
            new = {name: value for name, value in told.items() if value != whole[name]}
            self.chain.append({**head, "like": line, **new})
            self._num_like[kind] += 1
        else:
            self.chain.append({**head, **told})
            self._whole[kind], self._num_like[kind] = (self.chain.num_lines, told), 0

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self.chain.close()


def numbers_told(values: FloatArray) -> dict[str, str]:
    """Return float32 as they are written.

    Example:
        >>> numbers_told(np.array([0.5, np.nan], dtype=np.float32))
        {'f4': 'AAAAPwAAwH8='}
        >>> numbers_told(np.zeros(1000, dtype=np.float32))
        {'f4z': 'eNrtwTEBAAAAwqD1T20MH6AAAACAtwEPoAAB'}
    """
    plain = values.astype("<f4").tobytes()
    packed = zlib.compress(np.frombuffer(plain, dtype=np.uint8).reshape(-1, 4).T.tobytes(), 9)
    name, data = min((("f4", plain), ("f4z", packed)), key=lambda told: len(told[0]) + 4 / 3 * len(told[1]))
    return {name: base64.b64encode(data).decode("ascii")}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32:
            return numbers_told(value)
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
