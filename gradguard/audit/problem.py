"""One thing wrong with the files of a run."""

from __future__ import annotations

from typing import Literal

from gradguard.records import Frozen


ProblemKind = Literal["torn", "foreign", "changed", "gap", "chain", "cut_off", "statistics", "missing"]


class Problem(Frozen):
    """One thing wrong with the files of a run, and where.

    Args:
        kind: "torn" (the process ended inside a write; not tampering), "foreign" (not a record), "changed" (a line is
            not as it was written), "gap" (numbers missing or out of order), "chain" (a line does not follow the line
            before it: removed, moved or inserted), "cut_off" (lines missing at the end), "statistics" (a chunk of
            per-step rows), "missing" (a file).
        file: name below the run directory.
        line: from 1; None when the problem is not in a line.
        message: one sentence.
    """

    kind: ProblemKind
    file: str
    line: int | None = None
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"
