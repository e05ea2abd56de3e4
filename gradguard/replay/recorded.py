"""A run directory as the sequence of what was judged in it: rows of numbers, and what was noted between them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from gradguard.audit.chunks import Chunk
from gradguard.audit.columns import open_statistics_chunks
from gradguard.audit.probes import read_probe_lines
from gradguard.audit.read import Run, read_run
from gradguard.errors import RecordError
from gradguard.evidence.probe_stats import Activations, Updates
from gradguard.evidence.stats import ParameterTable
from gradguard.policy.schema import Policy
from gradguard.record.encode import to_json
from gradguard.replay.notes import Note, read_notes


class Section(NamedTuple):
    """Rows about the same parameters.

    Attributes:
        table: the parameters.
        layout: their place among the run's tables.
        first: position of the first row in the run.
        rows: structured array.
    """

    table: ParameterTable
    layout: int
    first: int
    rows: npt.NDArray[np.void]


class Recorded:
    """What a run directory holds for a replay.

    Args:
        path: the run directory.
        name: which guard's record, when several guards recorded there.

    Raises:
        RecordError: it is not a run directory, or holds no step.

    Attributes:
        run: the record as it is read for other purposes.
        policy: that was in force, None when it cannot be understood here (a plugin of it is missing).
        tables: the parameters, a table for every time that they changed.
        notes: what was noted between the rows; None in a record that is older than these notes.
        probes: what probes saw, with the step that was told.
        num_rows: judged steps.
        problems: what could not be read.
    """

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        self.run: Run = read_run(path, name)
        folder: Path = self.run.path
        layouts = self.run.info.get("layouts")
        self._chunks, problems = open_statistics_chunks(folder, layouts)
        self.num_rows = sum(len(chunk.rows) for chunk in self._chunks)
        if not self.num_rows:
            raise RecordError(f"{path}: the record holds no step, so there is nothing to replay")
        self.tables = [_table(layout) for layout in layouts or ()]
        self._starts = [int(layout["first_chunk"]) for layout in layouts or ()]
        self.probes: list[tuple[int, Activations | Updates]]
        self.probes, unread = read_probe_lines(folder)
        self.problems = [str(problem) for problem in (*problems, *unread)]
        told = read_notes(folder)
        self.notes: list[Note] | None = None
        if told is not None:
            self.notes = told[0]
            self.problems += told[1]
        self.policy = _policy(self.run.policy)

    def sections(self) -> Iterator[Section]:
        """Return the rows, in order."""
        first = 0
        for chunk in self._chunks:
            layout = self._layout(chunk)
            if len(chunk.rows):
                yield Section(self.tables[layout], layout, first, chunk.rows[:])
                first += len(chunk.rows)

    def recognise(self, policy: Policy) -> None:
        """Take a policy for the run's own if it is, and that one was not understood here."""
        if self.policy is None and to_json(policy.model_dump(mode="json")) == to_json(self.run.policy):
            self.policy = policy

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one of the columns that have a number a row."""
        return np.concatenate([rows[name].copy() for chunk in self._chunks for rows in chunk.rows.blocks()])

    def _layout(self, chunk: Chunk) -> int:
        number = int(Path(chunk.file).stem)
        return max(index for index, start in enumerate(self._starts) if start <= number)


def _table(layout: dict[str, Any]) -> ParameterTable:
    names = [str(name) for name in layout["parameters"]]
    count = len(names)
    shapes = [tuple(int(size) for size in shape) for shape in layout.get("shapes", ())]
    dtypes = [str(dtype) for dtype in layout.get("dtypes", ())]
    groups = [int(group) for group in layout.get("groups", [0] * count)]
    if not len(shapes) == len(dtypes) == len(groups) == count:
        raise RecordError(f"run.json: a layout names {count} parameters and describes {len(shapes)}")
    return ParameterTable(names, shapes, dtypes, groups)


def _policy(told: dict[str, Any]) -> Policy | None:
    try:
        return Policy.model_validate(told)
    except ValidationError:
        return None
