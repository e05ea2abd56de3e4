"""Whether the chunks of rows are as they were written, all of them, in their order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradguard.audit.chunks import BLOCK_BYTES, Chunk
from gradguard.audit.problem import MAX_PROBLEMS, Problem, ProblemKind
from gradguard.audit.seals import Seals
from gradguard.record.chunks import BUFFER_ROWS, npy_header
from gradguard.record.seals import SEAL_ROWS, SEALS_FILE, SealedRows


class RowsCheck:
    """Checks the chunks of one folder.

    Args:
        path: the run directory.
        folder: name of the folder.
        chunks: those that can be read.
        unread: what is wrong with the others.
        seals: of the run; None for a record without them.

    Attributes:
        problems: what was found.
        num_rows: rows that are there.
        num_proven: those of them that are as a seal says that is vouched for.
    """

    def __init__(
        self,
        path: Path,
        folder: str,
        chunks: Sequence[Chunk],
        unread: Sequence[Problem],
        seals: Seals | None,
    ) -> None:
        self.num_rows = sum(len(chunk.rows) for chunk in chunks)
        self.num_proven = 0
        self.problems = list(unread)
        self._folder = folder
        self._chunks = chunks
        self._unread = unread
        self._seals = seals
        self._sealed: Mapping[str, Sequence[SealedRows]] = seals.rows if seals is not None else {}
        self._vouched = seals.vouched_rows() if seals is not None else frozenset()

    def run(self, info: Mapping[str, Any], count: str, num_resumed: int) -> None:
        """Look for what is wrong.

        Args:
            info: what `run.json` says; `count` names the number of rows there.
            count: see above.
            num_resumed: how often a saved state was loaded, which sets the steps back.
        """
        self._look_for_missing_chunks()
        for chunk in self._chunks:
            problems = []
            if self._seals is not None:
                is_open = chunk is self._chunks[-1] and not self._seals.is_closed
                problems = [*self._check_blocks(chunk), *_check_header(chunk, is_open)]
            if chunk.num_spare_bytes and not problems:
                message = f"{chunk.num_spare_bytes} bytes of a row that was cut off by the end of the process"
                problems.append(Problem(kind="torn", file=chunk.file, message=message))
            self.problems += problems
        self._check_number(info.get(count), num_unsealed=self.num_rows - self._num_sealed())
        if lost := info.get(f"{count}_lost"):
            self._note("lost", self._folder, f"{lost} rows that the disk did not take")
        if all(problem.kind in ("torn", "lost", "cut_off") for problem in self.problems):
            self.problems += _check_order(self._chunks, num_resumed)

    def _look_for_missing_chunks(self) -> None:
        stems = [Path(file).stem for file in (*(c.file for c in self._chunks), *(item.file for item in self._unread))]
        numbers = {int(stem) for stem in stems if stem.isdecimal() and len(stem) <= 12}
        sealed = [file for file in self._sealed if file.startswith(f"{self._folder}/")]
        last = min(max(numbers, default=-1), len(numbers) + MAX_PROBLEMS)
        expected = {f"{self._folder}/{number:06d}.npy" for number in range(last + 1)}
        here = {f"{self._folder}/{number:06d}.npy" for number in numbers}
        for file in sorted((expected | set(sealed)) - here)[:MAX_PROBLEMS]:
            self._note("missing", file, "the chunk is missing")

    def _check_number(self, expected: Any, num_unsealed: int) -> None:
        """Compare the number of rows with what was noted when the run closed, and with what the seals cover."""
        if any(problem.kind != "lost" for problem in self.problems):
            return
        if expected is not None and self.num_rows != expected:
            message = f"{self.num_rows} rows, {expected} when the run closed"
            kind: ProblemKind = "missing" if isinstance(expected, int) and self.num_rows < expected else "statistics"
            self._note(kind, self._folder, message)
        elif self._seals is None or self._seals.problems:
            return
        elif self._seals.is_closed and num_unsealed:
            self._note("foreign", self._folder, f"{num_unsealed:,} rows that were not there when the run closed")
        elif num_unsealed > SEAL_ROWS + BUFFER_ROWS:
            message = f"{num_unsealed:,} rows since the last seal, more than ever wait for one: seals were cut off"
            self._note("cut_off", SEALS_FILE, message)

    def _num_sealed(self) -> int:
        blocks = [block for chunk in self._chunks for block in self._sealed.get(chunk.sealed_as, ())]
        return sum(block.stop - block.start for block in blocks)

    def _check_blocks(self, chunk: Chunk) -> Iterator[Problem]:
        """Compare the rows with what they hashed to when they were written; neighbouring damage is told together."""
        blocks = sorted(self._sealed.get(chunk.sealed_as, ()), key=lambda block: block.start)
        damaged: list[list[int]] = []
        for block in blocks:
            if block.stop > len(chunk.rows):
                is_end = chunk is self._chunks[-1]
                message = f"cut off after {len(chunk.rows):,} rows; there were {blocks[-1].stop:,}"
                yield Problem(kind="cut_off" if is_end else "missing", file=chunk.file, message=message)
                break
            if _digest(chunk, block) == block.sha256:
                self.num_proven += block.stop - block.start if block in self._vouched else 0
            elif damaged and damaged[-1][1] == block.start:
                damaged[-1][1] = block.stop
            else:
                damaged.append([block.start, block.stop])
        for start, stop in damaged:
            steps = chunk.rows[start:stop]["step"]
            where = f"rows {start:,} to {stop - 1:,} (steps {steps[0]:,} to {steps[-1]:,})"
            message = f"not as it was written: {where} do not match their seal"
            yield Problem(kind="changed", file=chunk.file, message=message)

    def _note(self, kind: ProblemKind, file: str, message: str) -> None:
        self.problems.append(Problem(kind=kind, file=file, message=message))


def _digest(chunk: Chunk, block: SealedRows) -> str:
    digest = hashlib.sha256()
    num_rows = max(1, BLOCK_BYTES // chunk.rows.dtype.itemsize)
    for start in range(block.start, block.stop, num_rows):
        digest.update(chunk.rows[start : min(block.stop, start + num_rows)].view(np.uint8).data)
    return digest.hexdigest()


def _check_header(chunk: Chunk, is_open: bool) -> Iterator[Problem]:
    """The header counts the rows; it is written after them, so in the chunk that was open it may lag behind."""
    num_rows, told = len(chunk.rows), chunk.num_told
    if not chunk.header:
        return
    is_whole = 0 <= told < 2**62 and chunk.header == npy_header(chunk.rows.dtype, told)
    if is_whole and told >= num_rows:  # rows that are missing are told of elsewhere
        return
    if is_whole and is_open and num_rows - told <= BUFFER_ROWS:
        message = f"its header tells of {told} of {num_rows} rows: the process ended between two writes"
        yield Problem(kind="torn", file=chunk.file, message=message)
    else:
        message = f"its header is not as it was written; it tells of {told} rows, and there are {num_rows}"
        yield Problem(kind="changed", file=chunk.file, message=message)


def _check_order(chunks: Sequence[Chunk], num_resumed: int) -> Iterator[Problem]:
    last = None
    for chunk in chunks:
        steps = chunk.rows.heads(np.dtype([("step", "<i8")]))["step"]
        if not len(steps):
            continue
        before = np.concatenate([steps[:1] - 1 if last is None else [last], steps[:-1]])
        for row in np.flatnonzero(steps <= before):
            num_resumed -= 1  # loading an earlier state sets the steps back, and leaves an event
            if num_resumed < 0:
                message = f"row {row}: step {steps[row]} comes after step {before[row]}"
                yield Problem(kind="statistics", file=chunk.file, message=message)
                return
        last = steps[-1]
