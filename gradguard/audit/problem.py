"""One thing wrong with the files of a run."""

from __future__ import annotations

from typing import Literal

from gradguard.records import Frozen


MAX_PROBLEMS = 1000  # told of one file: more of them are one big problem
ProblemKind = Literal["torn", "lost", "foreign", "changed", "gap", "chain", "cut_off", "statistics", "missing", "head"]


class Problem(Frozen):
    """One thing wrong with the files of a run, and where.

    Args:
        kind: "torn" (the process ended inside a write, or without closing the record; not tampering), "lost" (the disk
            did not take it; neither), "cut_off" (lines or rows missing at the end), "foreign" (not what gradguard
            writes), "changed" (not as it was written), "gap" (numbers missing or out of order), "chain" (a line does
            not follow the line before it: removed, moved or inserted), "statistics" (a chunk of rows), "missing" (a
            file, or rows of one), "head" (not the record that the published head stands for).
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
