"""What there is to see of a run, look by look."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.locate import locate, read_info
from gradguard.audit.process import Liveness, liveness
from gradguard.audit.responses import ENDS, TELLS
from gradguard.errors import RecordError
from gradguard.record.chunks import BUFFER_BYTES, BUFFER_ROWS
from gradguard.record.directory import INFO_FILE, JOURNAL_FILE, STATISTICS_FOLDER
from gradguard.record.statistics import row_dtype
from gradguard.records import AnyRecord, Event, Intervention
from gradguard.watch.entries import ENDINGS, Entries, Entry
from gradguard.watch.journal_tail import JournalTail
from gradguard.watch.layers import Layer, worst_layers
from gradguard.watch.pace import Pace
from gradguard.watch.row_tail import RECENT, RowTail


STALLED_SEC = 60.0  # without a word from a process that lives, before that is worth a word
SPACES = 3.0  # times the usual time between two writes that are no stall
MOST_LAYERS = 12


@dataclass(frozen=True)
class View:
    """A run at one look.

    Attributes:
        path: the directory of its files.
        info: what `run.json` says.
        status: "running", "interrupted" (its process died), or how it ended: "closed", "stopped", "failed".
        process: whether its process lives.
        num_rows: recorded steps.
        scalars: the last rows of the statistics, without norms.
        layers: farthest from their usual norm in the last `RECENT` steps, worst first.
        entries: what happened, oldest first; the last ones.
        new: records that came since the look before.
        num_unreadable: lines of the journal that are no records.
        rate: steps a second; None when that is not known.
        is_average: the rate is that of the whole run, as it was not seen to grow for long enough.
        silent_sec: seconds since anything was written.
        burst: steps that are written together.
        last_word: how it ended, in a sentence; "" while it runs.
        only_told: steps at which the guard warned and changed nothing, of those whose records were read.
    """

    path: Path
    info: Mapping[str, Any]
    status: str
    process: Liveness
    num_rows: int
    scalars: npt.NDArray[np.void]
    layers: list[Layer]
    entries: list[Entry]
    new: list[AnyRecord]
    num_unreadable: int
    rate: float | None
    is_average: bool
    silent_sec: float
    burst: int
    last_word: str
    only_told: frozenset[int] = frozenset()

    @property
    def mode(self) -> str:
        """Whether the policy is enforced, or only watched."""
        policy = self.info.get("policy")
        return str(policy.get("mode", "enforce")) if isinstance(policy, dict) else "enforce"

    @property
    def is_over(self) -> bool:
        """Nothing will be added any more."""
        return self.status != "running"

    @property
    def is_stalled(self) -> bool:
        """It runs, and has written nothing for much longer than it usually takes."""
        usual = SPACES * self.burst / self.rate if self.rate else 0.0
        return not self.is_over and self.silent_sec > max(STALLED_SEC, usual)


class Watcher:
    """Looks at a run again and again; each look reads only what is new.

    Args:
        path: the run directory.
        name: which guard's record, when several guards recorded there.
        num_steps: of the last steps so many are kept.
        monotonic: seconds that only rise.
        now: seconds since the epoch.

    Raises:
        RecordError: it is not a run directory, several guards recorded there, or a newer gradguard writes it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        num_steps: int = 500,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = locate(path, name)
        self._num_steps = num_steps
        self._monotonic = monotonic
        self._now = now
        self._info_seen: tuple[int, int] | None = None
        self._info = read_info(self.path)
        self._begin()

    def _begin(self) -> None:
        self._journal = JournalTail(self.path / JOURNAL_FILE)
        self._rows = RowTail(self.path / STATISTICS_FOLDER, self._num_steps)
        self._pace = Pace()
        self._entries = Entries()
        self._last_word = ""
        self._acts: dict[int, bool] = {}  # whether anything was changed, by step
        self._heard: float | None = None  # when something new was read, by `monotonic`

    def look(self) -> View:
        """Return what there is to see now.

        Raises:
            RecordError: the run directory is gone, or a newer gradguard writes there.
        """
        self._read_info()
        process = liveness(self._info)
        if self._info.get("status") == "running" and process == "gone":
            self._read_info()  # it may have ended in good order in between
        status = str(self._info.get("status", "unknown"))
        status = "interrupted" if status == "running" and process == "gone" else status
        # After the status: what an ended run has on disk is complete.
        num_new = self._rows.poll(self._info.get("layouts"))
        new = self._journal.poll()
        self._entries.add(new)
        moment = self._monotonic()
        self._pace.add(moment, self._rows.num_rows)
        if self._heard is None:
            self._heard = moment - self._age()
        elif new or num_new:
            self._heard = moment
        self._hear(new)
        rate = self._pace.rate()
        steps = self._rows.scalars["step"][-len(self._rows.norms) :] if len(self._rows.norms) else np.empty(0, "<i8")
        row_bytes = row_dtype(len(self._rows.parameters)).itemsize
        return View(
            path=self.path,
            info=self._info,
            status=status,
            process=process,
            num_rows=self._rows.num_rows,
            scalars=self._rows.scalars,
            layers=worst_layers(self._rows.norms, steps, self._rows.parameters, MOST_LAYERS),
            entries=self._entries.kept,
            new=new,
            num_unreadable=self._journal.num_unreadable,
            rate=rate if rate is not None else self._average_rate(),
            is_average=rate is None,
            silent_sec=max(0.0, moment - self._heard),
            burst=min(max(1, BUFFER_BYTES // row_bytes), BUFFER_ROWS),
            last_word=self._ended(status),
            only_told=frozenset(step for step, acts in self._acts.items() if not acts),
        )

    def _read_info(self) -> None:
        """Read `run.json` if it was replaced; start afresh when it is another run's."""
        try:
            stat = os.stat(self.path / INFO_FILE)
        except OSError as error:
            raise RecordError(f"{self.path}: the run is no longer there: {error.strerror or error}") from None
        if (stat.st_mtime_ns, stat.st_size) == self._info_seen:
            return
        before = self._info.get("run_id")
        try:
            self._info = read_info(self.path)
        except RecordError:
            if not stat.st_size:  # claimed by the next run, which has not written it yet
                return
            raise
        self._info_seen = (stat.st_mtime_ns, stat.st_size)
        if self._info.get("run_id") != before:
            self._begin()

    def _age(self) -> float:
        """Return how long ago the files were written last, by the clock of whoever keeps them."""
        times = []
        for path in (self.path / JOURNAL_FILE, self._rows.last_chunk):
            try:
                times.append(os.stat(path).st_mtime)
            except OSError:
                continue
        return max(0.0, self._now() - max(times)) if times else 0.0

    def _average_rate(self) -> float | None:
        """Return steps a second since the run began, to its end or to the last write."""
        try:
            began = datetime.fromisoformat(self._info["created"]).timestamp()
            ended = self._info.get("ended")
            end = datetime.fromisoformat(ended).timestamp() if ended else self._now() - self._age()
        except (KeyError, TypeError, ValueError):
            return None
        return self._rows.num_rows / (end - began) if end > began and self._rows.num_rows else None

    def _hear(self, new: list[AnyRecord]) -> None:
        for record in new:
            if isinstance(record, Intervention):
                self._acts[record.step] = self._acts.get(record.step, False) or record.remedy != TELLS
            if isinstance(record, Event) and record.event in ENDINGS:
                self._last_word = self._last_word or record.message
            elif isinstance(record, Intervention) and record.remedy == ENDS:
                because = record.finding.message if record.finding is not None else record.change.summary
                self._last_word = (
                    f"the policy stopped it at step {record.step} because of {record.diagnosis}. {because}"
                )

    def _ended(self, status: str) -> str:
        if status == "running":
            return ""
        if status == "interrupted":
            return f"its process ({self._info.get('pid')}) died without closing the guard"
        return self._last_word or status


def recent_steps(view: View) -> int:
    """Return over how many steps the layers of a view were looked at."""
    return min(RECENT, len(view.scalars))
