"""What the seals of a run say of its other files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from gradguard.audit.chain_check import ChainCheck
from gradguard.audit.problem import Problem
from gradguard.record.chain import SealedLines, first_link
from gradguard.record.seals import SEALS_FILE, Seal, SealedRows


Published = Literal["last", "earlier", "unknown", ""]
MAX_BLOCKS = 1_000_000  # of rows: of a billion steps


class Seals:
    """The seals of a run, read and checked.

    Args:
        path: the run directory.
        run_id: what their chain starts with; None when it is not known.
        head: that was kept elsewhere, or its first digits: it vouches for the seals up to its own, and for no others.

    Attributes:
        hashes: of the seals, in order; the last one is the head of the record.
        lines: of each chained file, how far it had come at each seal.
        rows: of each chunk, the blocks of rows.
        infos: sha256 of `run.json`, as it was at one seal after the other, each once.
        is_closed: the last one was written when the run was closed.
        published: what `head` stands for: the "last" seal, an "earlier" one, an "unknown" one, or "" for no head.
        vouched: the seals that prove something: all of them, or those that `head` vouches for.
        problems: what is wrong with them.
    """

    def __init__(self, path: Path, run_id: str | None, head: str | None = None) -> None:
        self.hashes: list[str] = []
        self.lines: dict[str, list[SealedLines]] = {}
        self.rows: dict[str, list[SealedRows]] = {}
        self.infos: list[str] = []
        self.is_closed = False
        self.published: Published = "" if head is None else "unknown"
        self.vouched: list[Seal] = []
        start = None if run_id is None else first_link(f"{run_id} seals")
        check, num_blocks = ChainCheck(path / SEALS_FILE, start), 0
        unbroken: list[Seal] = []  # up to the line at hand
        for line in check.lines():
            seal = _seal(line.fields)
            if seal is None:
                message = "not a seal of gradguard"
                check.problems.append(Problem(kind="foreign", file=SEALS_FILE, line=line.number, message=message))
                continue
            if self.hashes and line.prev != self.hashes[-1]:
                unbroken = []
            unbroken.append(seal)
            self._take(seal)
            self.hashes.append(line.hash)
            if self.published == "last":
                self.published = "earlier"
            if head is None:
                self.vouched.append(seal)
            elif line.hash.startswith(head.lower()):
                self.published, self.vouched = "last", unbroken.copy()
            num_blocks += len(seal.rows)
            if num_blocks > MAX_BLOCKS:
                message = "the rest was not read: more seals than any run has"
                check.problems.append(Problem(kind="foreign", file=SEALS_FILE, line=line.number, message=message))
                break
        self.problems = check.problems

    @property
    def head(self) -> str | None:
        """The hash that stands for all that is sealed; None without seals."""
        return self.hashes[-1] if self.hashes else None

    def vouched_lines(self, file: str) -> frozenset[str]:
        """Return the hashes of lines of a chained file that are known to be right."""
        return frozenset(seal.lines[file].hash for seal in self.vouched if file in seal.lines)

    def vouched_rows(self) -> frozenset[SealedRows]:
        """Return the blocks of rows that are known to be right."""
        return frozenset(block for seal in self.vouched for block in seal.rows)

    def _take(self, seal: Seal) -> None:
        for file, state in seal.lines.items():
            self.lines.setdefault(file, []).append(state)
        for block in seal.rows:
            self.rows.setdefault(block.file, []).append(block)
        if seal.info not in self.infos[-1:]:
            self.infos.append(seal.info)
        self.is_closed = seal.is_last


def _seal(fields: Mapping[str, Any] | None) -> Seal | None:
    try:
        seal = Seal.model_validate(fields)
    except ValidationError:
        return None
    return seal if all(block.start < block.stop for block in seal.rows) else None
