"""A recorded run as Python objects and numpy arrays.

Reading is forgiving, because a record is needed most after a crash: what cannot be read is skipped and listed in
`Run.problems`. `verify_run` is the strict reader.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from gradguard.audit.chunks import all_parameters
from gradguard.audit.columns import Columns, open_statistics_chunks
from gradguard.audit.efficacy import Efficacy, efficacy
from gradguard.audit.gradients import Gradients, open_gradient_chunks
from gradguard.audit.line import NewerVersionError, read_lines
from gradguard.audit.locate import locate, read_info, run_names
from gradguard.audit.probes import read_probes
from gradguard.audit.problem import Problem
from gradguard.audit.process import liveness
from gradguard.errors import RecordError
from gradguard.record.directory import JOURNAL_FILE
from gradguard.record.encode import to_json
from gradguard.records import AnyRecord, Event, Finding, Intervention, Outcome, Withheld


__all__ = ["Run", "read_run", "run_names"]


class Run:
    """One guard's record of one run; made by `read_run`.

    Attributes:
        path: the directory of its files.
        info: what `run.json` says.
        records: every record in order; interventions carry their outcome.
        activations: what each probe of activations saw, by the step at which the diagnoses were told.
        updates: what each look at the optimizer's updates saw, likewise.
        problems: what could not be read.
        is_torn: the last line was cut off by the end of the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = read_info(path)
        self.is_torn = False
        self.problems: list[Problem] = []
        records = []
        if not (path / JOURNAL_FILE).exists():
            self.problems.append(Problem(kind="missing", file=JOURNAL_FILE, message="the journal is missing"))
        for line in read_lines(path / JOURNAL_FILE):
            if line.is_torn:
                self.is_torn = True
                continue
            try:
                records.append(line.record())
            except NewerVersionError:
                raise
            except RecordError as error:
                text = str(error).removeprefix(f"{line.place}: ")
                self.problems.append(Problem(kind="foreign", file=JOURNAL_FILE, line=line.number, message=text))
        outcomes = {record.of: record for record in records if isinstance(record, Outcome)}
        self.records: tuple[AnyRecord, ...] = tuple(
            record.model_copy(update={"outcome": outcomes.get(record.seq)})
            if isinstance(record, Intervention)
            else record
            for record in records
        )
        layouts = self.info.get("layouts")
        chunks, problems = open_statistics_chunks(path, layouts)
        self.problems += problems
        self._columns = Columns(chunks, all_parameters(layouts))
        chunks, problems = open_gradient_chunks(path, layouts)
        self.problems += problems
        self._gradients = Gradients(chunks, all_parameters(layouts))
        self.activations, self.updates, problems = read_probes(path)
        self.problems += problems

    @property
    def statistics(self) -> Columns:
        """Arrays over the S recorded steps by name: "step", "loss", ..., (S,), and "norms" (S, P)."""
        return self._columns

    @property
    def gradients(self) -> Gradients:
        """Arrays over the K probed steps by name: "step" (K,), "mean", ..., "norm" (K, P), "histogram" (K, P, B)."""
        return self._gradients

    def frame(self, table: str = "statistics", library: str | None = None) -> Any:
        """Return a table of the run as a data frame, with the columns that `gradguard schema TABLE` documents.

        Args:
            table: "statistics" (a row a step, a column a parameter), "gradients", "activations", "updates",
                "interventions" or "events".
            library: "pandas" or "polars"; None for the one that is installed, pandas first.

        Raises:
            UsageError: there is no such table, or the library is not installed.
        """
        from gradguard.export.frame import frame_of

        return frame_of(self, table, library)

    @property
    def parameters(self) -> list[str]:
        """Names of the P columns of `norms`, in the order of their first appearance."""
        return self._columns.parameters

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that was in force, all defaults filled in."""
        policy = self.info.get("policy")
        return policy if isinstance(policy, dict) else {}

    @property
    def status(self) -> str:
        """How the run ended: "closed", "stopped", "failed", "running", or "interrupted" when its process died."""
        status = str(self.info.get("status", "unknown"))
        return "interrupted" if status == "running" and liveness(self.info) == "gone" else status

    @cached_property
    def findings(self) -> list[Finding]:
        """Every finding once, in order, acted on or not."""
        found = {
            to_json(record.finding): record.finding
            for record in self.records
            if isinstance(record, (Intervention, Withheld)) and record.finding is not None
        }
        return list(found.values())

    @cached_property
    def interventions(self) -> list[Intervention]:
        """Every action, in order, with its outcome where it was judged."""
        return [record for record in self.records if isinstance(record, Intervention)]

    @cached_property
    def withheld(self) -> list[Withheld]:
        """Every action that was due and not carried out, in order."""
        return [record for record in self.records if isinstance(record, Withheld)]

    @cached_property
    def efficacy(self) -> tuple[Efficacy, ...]:
        """What each remedy was worth against each diagnosis: how often it helped, and how soon."""
        return efficacy(self)

    @cached_property
    def events(self) -> list[Event]:
        """Everything else that was noted, in order."""
        return [record for record in self.records if isinstance(record, Event)]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self.records)} records, {self.statistics.num_steps} steps)"


def read_run(path: str | os.PathLike[str], name: str | None = None) -> Run:
    """Read the record of a run, finished or not.

    Args:
        path: the run directory.
        name: which guard's record, when several guards recorded there.

    Raises:
        RecordError: it is not a run directory, several guards recorded there, or a newer gradguard wrote it.
    """
    return Run(locate(path, name))
