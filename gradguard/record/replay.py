"""What diagnoses read beside the rows of statistics, on disk, so that a run can be replayed: a JSON object a line.

    {"row":0,"kind":"weights","norms":{"array":"<f4",...},"sgd_reach":12.3,...,"prev":"<64 hex>","hash":"<64 hex>"}

`row` is the row of statistics (from 0) that is judged next when the line is written. A line with `"within":true` was
written between the judgement of that row and its being taken into the rolling statistics.

    layout      the rows to come are about other parameters; `index` is their place in the layouts of run.json
    weights     norms of the weights, as they were sampled
    spreads     how the units of each weight differ, read at the start and when weights were replaced
    lateness    from this row on steps are judged one step later, or no longer; see `StepStats.is_late`
    facts       of one row: counts of NaN, norms beyond float32, damaged tensors, and whatever else is rare
    aside       a judgement without a row: a broken step, a step that GradScaler skipped, the last step's weights
    forget      the rolling statistics started afresh
    roll_back   they went back to those of a snapshot
    resumed     a saved state was loaded, with windows and histories
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from gradguard.evidence.stats import FloatArray
from gradguard.record.chain import LazyChain, first_link
from gradguard.record.exact import to_exact


REPLAY_FILE = "replay.jsonl"
Kind = Literal["layout", "weights", "spreads", "lateness", "facts", "aside", "forget", "roll_back", "resumed"]


class NotedWeights(NamedTuple):
    """Norms of weights that were noted.

    Args:
        line: of the file, from 1.
        norms: (P,).
    """

    line: int
    norms: FloatArray

    def are(self, norms: FloatArray) -> bool:
        """Return whether these are the same, bit by bit."""
        return self.norms.dtype == norms.dtype and self.norms.tobytes() == norms.tobytes()


class ReplayWriter:
    """Appends a line now and then, and has it written at once.

    Args:
        path: of the file; it is made for the first line.
        run_id: of the run.

    Attributes:
        chain: writes the lines.
        weights: noted last; None before the first.
    """

    def __init__(self, path: Path, run_id: str = "") -> None:
        self.chain = LazyChain(path, first_link(f"{run_id} replay"))
        self.weights: NotedWeights | None = None

    def append(self, kind: Kind, row: int, values: dict[str, Any], is_within: bool = False) -> None:
        """Write one line.

        Args:
            kind: what it is about.
            row: see above.
            values: by name; anything that `to_exact` takes.
            is_within: see above.

        Raises:
            OSError: it could not be written.
            ValueError: a value is of another kind.
        """
        told: dict[str, Any] = {"row": row, "kind": kind}
        if is_within:
            told["within"] = True
        self.chain.append(told | {name: to_exact(value) for name, value in values.items()})
        if kind == "weights":
            self.weights = NotedWeights(self.chain.num_lines, np.array(values["norms"]))

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self.chain.close()
