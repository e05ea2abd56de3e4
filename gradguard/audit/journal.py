"""The journal read back as records. Reading is forgiving: what cannot be read is passed over and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradguard.audit.line import Line, NewerVersionError, read_lines
from gradguard.audit.problem import MAX_PROBLEMS, Problem
from gradguard.errors import RecordError
from gradguard.record.directory import JOURNAL_FILE
from gradguard.records import AnyRecord, Finding, Intervention, Outcome


MAX_RECORDS = 1_000_000  # read from one journal: some gigabytes of memory
MAX_STEP = 2**62


class JournalRecords:
    """What a journal says.

    Args:
        path: the run directory.

    Attributes:
        records: in order; interventions carry their outcome: of one that was judged again after a resume the last.
        findings: every finding once, in order, acted on or not.
        problems: what could not be read.
        is_torn: the last line was cut off by the end of the process.

    Raises:
        RecordError: the file cannot be opened, or a newer gradguard wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.findings: list[Finding] = []
        self.problems: list[Problem] = []
        self.is_torn = False
        self._told: dict[int, list[tuple[Any, Finding]]] = {}
        read: list[AnyRecord] = []
        if not (path / JOURNAL_FILE).exists():
            self.problems.append(Problem(kind="missing", file=JOURNAL_FILE, message="the journal is missing"))
        for line in read_lines(path / JOURNAL_FILE):
            if line.is_torn:
                self.is_torn = True
                continue
            try:
                read.append(self._record(line))
            except NewerVersionError:
                raise
            except RecordError as error:
                text = str(error).removeprefix(f"{line.place}: ")
                self.problems.append(Problem(kind="foreign", file=JOURNAL_FILE, line=line.number, message=text))
            if len(self.problems) >= MAX_PROBLEMS or len(read) >= MAX_RECORDS:
                message = "the rest of the journal was not read: too much of it is damaged, or there is too much of it"
                self.problems.append(Problem(kind="foreign", file=JOURNAL_FILE, line=line.number, message=message))
                break
        self.records: tuple[AnyRecord, ...] = tuple(read)
        done = {record.seq: record for record in read if isinstance(record, Intervention)}
        for record in read:
            if isinstance(record, Outcome) and record.of in done and record.judges(done[record.of].step):
                done[record.of].__dict__["outcome"] = record  # nobody has it yet; copies of all would take longer

    def _record(self, line: Line) -> AnyRecord:
        """Return the record of a line; records of one step that share a finding have the same one."""
        fields = line.fields
        raw = fields.get("finding") if fields is not None else None
        if fields is None or not isinstance(raw, dict):
            return self._valid(line)
        step = fields.get("step")
        told = self._told.get(step, []) if isinstance(step, int) else []
        for known, finding in told:
            if known == raw:
                fields["finding"] = finding
                return self._valid(line)
        record = self._valid(line)
        found = getattr(record, "finding", None)
        if found is not None:
            if record.step not in self._told:
                self._told = {record.step: []}  # what is found at one step stands together
            self._told[record.step].append((raw, found))
            self.findings.append(found)
        return record

    def _valid(self, line: Line) -> AnyRecord:
        record = line.record()
        if not 0 <= record.step < MAX_STEP:
            raise RecordError(f"{line.place}: not a record of gradguard: step {record.step:.3g}")
        return record
