"""Whether the lines of a chained file are as they were written, all of them, in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from gradguard.audit.line import Line, read_lines
from gradguard.audit.problem import MAX_PROBLEMS, Problem, ProblemKind
from gradguard.record.chain import SealedLines


class ChainCheck:
    """Walks a chain; after a break it is taken up again from the line at hand, so that one edit is one problem.

    Args:
        path: of the file.
        start: what the first line is chained to; None when that is not known.
        sealed: how far the chain had come at each seal, in order.
        is_closed: the last of these was written when the run was closed.
        vouched: hashes of lines that are known to be right; None for those of `sealed`.
        is_numbered: the lines carry their number as `seq`.

    Attributes:
        problems: what was found so far.
        num_lines: lines that are JSON objects.
        num_proven: lines from which an unbroken chain leads to a vouched one.
        last_hash: of the last line; "" before the first.
    """

    def __init__(
        self,
        path: Path,
        start: str | None,
        sealed: Sequence[SealedLines] = (),
        *,
        is_closed: bool = False,
        vouched: Collection[str] | None = None,
        is_numbered: bool = True,
    ) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.num_lines = self.num_proven = 0
        self.last_hash = ""
        self._start = start
        self._sealed = {state.lines: state.hash for state in sealed}
        self._is_closed = is_closed
        self._vouched = frozenset(self._sealed.values()) if vouched is None else vouched
        self._is_numbered = is_numbered

    def lines(self) -> Iterator[Line]:
        """Yield the lines that are JSON objects as they were written, and note what is wrong with the others.

        Raises:
            RecordError: the file cannot be opened.
        """
        prev, seq, unproven = self._start, 0, 0
        for line in read_lines(self.path):
            if len(self.problems) >= MAX_PROBLEMS:
                self._note("foreign", line, "the rest of the file was not looked at: too much of it is damaged")
                return
            if line.is_torn:
                self._note("torn", line, "cut off by the end of the process; the line before it is whole")
                continue
            if line.fields is None:
                self._note("foreign", line, f"{line.fault}; it was not written by gradguard or was overwritten")
                continue
            is_as_written = line.is_as_written()
            if not is_as_written:
                self._note("changed", line, "not as it was written: its content does not match its hash")
            elif not line.has_break:
                self._note("torn", line, "the line break behind it is missing; the line is whole")
            found = line.fields.get("seq") if self._is_numbered else seq
            is_linked = prev is None or line.prev == prev
            if not is_linked:
                moved = f"; its number is {found}, expected {seq}" if found != seq else ""
                self._note("chain", line, f"does not follow the line before it: lines were removed or moved{moved}")
            elif found != seq:
                self._note("gap", line, f"its number is {found}, expected {seq}")
            prev = self.last_hash = line.hash
            seq = found + 1 if isinstance(found, int) else seq + 1
            self.num_lines += 1
            if not self.problems and self._sealed.get(self.num_lines, line.hash) != line.hash:
                self._note("chain", line, "not the line that was sealed here: the file was rewritten up to this line")
            if is_as_written:
                unproven = unproven + 1 if is_linked else 1
                if line.hash in self._vouched:
                    self.num_proven, unproven = self.num_proven + unproven, 0
                yield line
            else:
                unproven = 0  # nothing shows what this line followed
        self._check_end()

    def _check_end(self) -> None:
        """A chain by itself does not miss its last lines, nor find lines that were added by its own rules."""
        expected = max(self._sealed, default=0)
        if self._is_closed and self.num_lines > expected and not self.problems:
            message = f"from here on it was not there when the run closed: {self.num_lines - expected:,} more"
            self.problems.append(Problem(kind="foreign", file=self.path.name, line=expected + 1, message=message))
        if self.num_lines < expected and not any(item.kind not in ("torn", "cut_off") for item in self.problems):
            message = f"ends after {self.num_lines:,} lines; there were {expected:,} at the last seal"
            self.problems.append(Problem(kind="cut_off", file=self.path.name, message=message))

    def _note(self, kind: ProblemKind, line: Line, message: str) -> None:
        self.problems.append(Problem(kind=kind, file=self.path.name, line=line.number, message=message))
