"""Where the guard hands over what it has to say: journal, statistics, sinks; none of them may break the training."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from loguru import logger

from gradguard.contracts import Sink
from gradguard.evidence.probe_stats import Activations, Updates
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import printable
from gradguard.record import facts
from gradguard.record.chain import ReplacedError
from gradguard.record.directory import RunDirectory
from gradguard.record.replay import Kind
from gradguard.records import AnyRecord, Outcome, Record


R = TypeVar("R", bound=Record)
KEPT = 1000  # records kept in memory, for `guard.records`


class Recorder:
    """Writes records and rows, and goes on without the part that failed.

    Args:
        directory: the run directory, or None to keep records in memory only.
        sinks: who is told of records.
        on_fault: called with (what failed, error) the first time that something fails.
    """

    def __init__(
        self, directory: RunDirectory | None, sinks: Sequence[Sink], on_fault: Callable[[str, Exception], None]
    ) -> None:
        self.directory = directory
        self.kept: deque[AnyRecord] = deque(maxlen=KEPT)
        self._sinks = list(sinks)
        self._on_fault = on_fault
        self._num_kept = 0
        self._waiting: deque[tuple[Record, bool]] = deque(maxlen=KEPT)
        self._has_rows = directory is not None
        self._was_late = False

    @property
    def has_rows(self) -> bool:
        """Whether rows are written anywhere."""
        return self._has_rows

    def write(self, record: R, durable: bool = True) -> R:
        """Write one record to the journal, keep it, tell the sinks; return it with its `seq`.

        A record that the disk does not take waits, in order, for the next one that it takes.
        """
        self.flush()
        if self.directory is not None:
            seq = self.directory.journal.num_records + len(self._waiting)
        else:
            seq = self._num_kept
        self._num_kept += 1
        record = record.model_copy(update={"seq": seq})
        self.kept.append(record)  # type: ignore[arg-type]
        if self.directory is not None:
            self._waiting.append((record, durable))
            record = self._drain() or record
        for sink in tuple(self._sinks):
            try:
                sink.emit(record)  # type: ignore[arg-type]
            except Exception as error:
                self._sinks.remove(sink)
                self._on_fault(f"sink {sink.name!r}", error)
        return record

    def _drain(self) -> Any:
        """Write what waits; return the last record as written, None if the disk did not take it."""
        written, is_due = None, False
        try:
            while self._waiting and self.directory is not None:
                record, durable = self._waiting[0]
                written = self.directory.journal.append(record, durable=durable)
                is_due |= durable or isinstance(record, Outcome)  # of what is not sealed nothing is proven
                self._waiting.popleft()
        except (OSError, ValueError) as error:
            self._tell("writing the record", error)
            return None
        if is_due and self.directory is not None:
            try:
                self.directory.seal()
            except (OSError, ValueError) as error:
                self._tell("sealing the record", error)
        return written

    def _tell(self, what: str, error: Exception) -> None:
        """Tell a fault of the disk; a directory that is gone, or another run's by now, is let go of."""
        if isinstance(error, ReplacedError) and self.directory is not None:
            self.directory.abandon()
            self.directory = None
            self._has_rows = False
            self._waiting.clear()
            what = "recording to disk"
        self._on_fault(what, error)

    def row(self, stats: StepStats, lr_factor: float, clip_coef: float, flags: int) -> None:
        """Add one step's row of statistics; see `StatisticsWriter.append`."""
        if self._has_rows:
            try:
                self.directory.statistics.append(  # type: ignore[union-attr]
                    stats.step,
                    stats.loss,
                    stats.lr,
                    stats.global_norm,
                    lr_factor,
                    clip_coef,
                    stats.loss_scale,
                    flags,
                    stats.norms,
                )
            except (OSError, ValueError) as error:
                self._tell("writing the statistics", error)

    def gradients(self, step: int, columns: Mapping[str, Any], is_absent: Any) -> None:
        """Add the row of one probe; see `GradientsWriter.append`."""
        if self._has_rows:
            try:
                self.directory.gradients.append(step, columns, is_absent)  # type: ignore[union-attr]
            except (OSError, ValueError) as error:
                self._tell("writing the statistics of gradients", error)

    def probe(self, step: int, seen: Activations | Updates) -> None:
        """Write what a probe saw; see `ProbesWriter`."""
        if self._has_rows:
            try:
                directory = self.directory
                directory.probes.append(step, seen, directory.replay.weights)  # type: ignore[union-attr]
            except (OSError, ValueError) as error:
                self._tell("writing what probes saw", error)

    def replay(self, kind: Kind, *, is_within: bool = False, **values: Any) -> None:
        """Write down what a replay needs beside the rows; see `ReplayWriter`."""
        if self._has_rows:
            directory = self.directory
            try:
                row = directory.statistics.num_rows + directory.statistics.num_lost  # type: ignore[union-attr]
                directory.replay.append(kind, row, values, is_within)  # type: ignore[union-attr]
            except (OSError, ValueError) as error:
                self._tell("writing what a replay needs", error)

    def facts(self, stats: StepStats) -> None:
        """Write down what the row of a step that is about to be judged would leave out, if there is anything."""
        if stats.is_late is not self._was_late:
            self._was_late = stats.is_late
            self.replay("lateness", is_late=stats.is_late)
        if facts.is_remarkable(stats) and self._has_rows:
            self.replay("facts", **facts.facts(stats))

    def aside(self, stats: StepStats) -> None:
        """Write down what is about to be judged without a row."""
        if self._has_rows:
            self.replay("aside", **facts.whole(stats))

    def sampled(self, stats: StepStats, has_spreads: bool = False, is_within: bool = False) -> None:
        """Write down what was sampled of the weights."""
        scalars = {"sgd_reach": stats.sgd_reach, "shrinkage": stats.shrinkage}
        self.replay("weights", is_within=is_within, norms=stats.weight_norms, **scalars)
        if has_spreads:
            self.replay("spreads", is_within=is_within, spreads=stats.weight_spreads)

    def write_layout(self, table: ParameterTable) -> None:
        """Say which parameters the rows are about from now on."""
        if self.directory is not None:
            try:
                self.directory.write_layout(table)
            except OSError as error:
                self._has_rows = False
                self._tell("writing the statistics", error)
                return
            self.replay("layout", index=len(self.directory.info["layouts"]) - 1)

    def flush(self) -> None:
        """Write the rows that are buffered."""
        if self.directory is not None:
            try:
                self.directory.statistics.flush()
                self.directory.gradients.flush()
            except (OSError, ValueError) as error:
                self._tell("writing the statistics", error)

    def finish(self, status: str) -> None:
        """Close everything and say how the run ended."""
        if self.directory is not None:
            try:
                self.directory.finish(status)
            except (OSError, ValueError) as error:
                self._tell("closing the record", error)
            else:
                if status != "stopped":  # `TrainingStopped` says it there
                    logger.info("{}", printable(f"what happened, step by step: {_audit(self.directory)}"))
        self._has_rows = False
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self._on_fault(f"sink {sink.name!r}", error)
        self._sinks.clear()


def _audit(directory: RunDirectory) -> str:
    """Return the command that shows what was recorded."""
    name = directory.info["name"]
    if name is None:
        return f"gradguard audit {shlex.quote(str(directory.path))}"
    return f"gradguard audit {shlex.quote(str(directory.path.parent))} --name {shlex.quote(name)}"
