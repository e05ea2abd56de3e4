"""A recorded run as Python objects and numpy arrays, each part read when it is asked for.

Reading is forgiving, because a record is needed most after a crash: what cannot be read is skipped and listed in
`Run.problems`. `verify_run` is the strict reader.
"""

from __future__ import annotations

import os
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from gradguard.audit.chunks import Chunk, all_parameters
from gradguard.audit.columns import Columns, open_statistics_chunks
from gradguard.audit.efficacy import Efficacy, efficacy
from gradguard.audit.gradients import Gradients, open_gradient_chunks
from gradguard.audit.journal import JournalRecords
from gradguard.audit.line import check_version, read_lines
from gradguard.audit.locate import locate, read_info, run_names
from gradguard.audit.probes import Probes, read_probes
from gradguard.audit.problem import Problem
from gradguard.audit.status import status_of
from gradguard.evidence.probe_stats import Activations, Updates
from gradguard.record.directory import JOURNAL_FILE
from gradguard.records import AnyRecord, Event, Finding, Intervention, Withheld


__all__ = ["Run", "read_run", "run_names"]


class Run:
    """One guard's record of one run; made by `read_run`.

    Attributes:
        path: the directory of its files.
        info: what `run.json` says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = read_info(path)
        for line in islice(read_lines(path / JOURNAL_FILE), 1):
            check_version((line.fields or {}).get("v"), line.place)

    @property
    def records(self) -> tuple[AnyRecord, ...]:
        """Every record in order; interventions carry their outcome."""
        return self._journal.records

    @property
    def activations(self) -> dict[int, Activations]:
        """What each probe of activations saw, by the step at which the diagnoses were told."""
        return self._probes.activations

    @property
    def updates(self) -> dict[int, Updates]:
        """What each look at the optimizer's updates saw, likewise."""
        return self._probes.updates

    @property
    def problems(self) -> list[Problem]:
        """What could not be read, of all files."""
        return [*self.problems_of_steps, *self._probes.problems]

    @property
    def problems_of_steps(self) -> list[Problem]:
        """What could not be read of records, statistics and gradients: what an audit is made from."""
        return [*self._journal.problems, *self._statistics_chunks[1], *self._gradient_chunks[1]]

    @property
    def is_torn(self) -> bool:
        """Whether the last record was cut off by the end of the process."""
        return self._journal.is_torn

    @cached_property
    def statistics(self) -> Columns:
        """Arrays over the S recorded steps by name: "step", "loss", ..., (S,), and "norms" (S, P)."""
        return Columns(self._statistics_chunks[0], self.parameters)

    @cached_property
    def gradients(self) -> Gradients:
        """Arrays over the K probed steps by name: "step" (K,), "mean", ..., "norm" (K, P), "histogram" (K, P, B)."""
        return Gradients(self._gradient_chunks[0], self.parameters)

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

    @cached_property
    def parameters(self) -> list[str]:
        """Names of the P columns of `norms`, in the order of their first appearance."""
        return all_parameters(self.info.get("layouts"))

    @property
    def name(self) -> str | None:
        """The guard's name, None when it has none."""
        name = self.info.get("name")
        return name if isinstance(name, str) else None

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that was in force, all defaults filled in."""
        policy = self.info.get("policy")
        return policy if isinstance(policy, dict) else {}

    @property
    def status(self) -> str:
        """How the run ended: "closed", "stopped", "failed", "running", or "interrupted" when its process died."""
        return status_of(self.info)

    @property
    def findings(self) -> list[Finding]:
        """Every finding once, in order, acted on or not."""
        return self._journal.findings

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

    @cached_property
    def _journal(self) -> JournalRecords:
        return JournalRecords(self.path)

    @cached_property
    def _statistics_chunks(self) -> tuple[list[Chunk], list[Problem]]:
        return open_statistics_chunks(self.path, self.info.get("layouts"))

    @cached_property
    def _gradient_chunks(self) -> tuple[list[Chunk], list[Problem]]:
        return open_gradient_chunks(self.path, self.info.get("layouts"))

    @cached_property
    def _probes(self) -> Probes:
        return read_probes(self.path)


def read_run(path: str | os.PathLike[str], name: str | None = None) -> Run:
    """Read the record of a run, finished or not.

    Args:
        path: the run directory.
        name: which guard's record, when several guards recorded there.

    Raises:
        RecordError: it is not a run directory, several guards recorded there, or a newer gradguard wrote it.
    """
    return Run(locate(path, name))
