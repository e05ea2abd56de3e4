"""Records as a person follows them: what was found, what was done about it, and later whether that helped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gradguard.outcomes.verdict import WORDS
from gradguard.records import AnyRecord, Event, Finding, Intervention, Outcome, Withheld


# Reasons that a person should hear of; the others follow from what is shown (cooldown, superseded) or are no alarm.
REASONS = {
    "dry_run": "only watched, would have done",
    "budget": "not done, the budget is spent:",
    "no_rule": "no rule acts on it",
    "unavailable": "could not be done:",
    "failed": "failed:",
}
ENDINGS = ("closed", "stopped", "failed")  # events that are the last word of a run
KEPT = 200  # entries that are kept


@dataclass
class Entry:
    """One thing that happened, or the same thing several times in a row.

    Attributes:
        key: what makes two of them the same.
        first_step: of the first.
        last_step: of the last.
        severity: "info", "warn" or "critical".
        head: what was found and where, or the name of an event.
        done: what was done about it, of the last; "" for events.
        message: one sentence of explanation, of the last.
        count: how many.
        outcomes: verdict to number, of those that were judged.
        judged: the latest verdict in a sentence.
        last_verdict: the verdict on the last of them, "" while there is none.
        time: UTC, ISO 8601, of the last.
        diagnosis: what was found; "" for events.
        remedy: what was done or was due; likewise.
        is_done: it was carried out.
        last_seq: of the record of the last.
    """

    key: tuple[str, ...]
    first_step: int
    last_step: int
    severity: str
    head: str
    done: str = ""
    message: str = ""
    count: int = 1
    outcomes: dict[str, int] = field(default_factory=dict)
    judged: str = ""
    last_verdict: str = ""
    time: str = ""
    diagnosis: str = ""
    remedy: str = ""
    is_done: bool = False
    last_seq: int = -1

    @property
    def is_alarm(self) -> bool:
        """Something was found that is more than worth knowing."""
        return bool(self.diagnosis) and self.severity != "info"


class Entries:
    """Collects entries from records, in order; the last ones are kept.

    Attributes:
        kept: oldest first.
    """

    def __init__(self) -> None:
        self.kept: list[Entry] = []
        self._by_seq: dict[int, tuple[int, Entry]] = {}  # of interventions: their step, and what they are told in
        self._verdicts: dict[int, str] = {}

    def add(self, records: Iterable[AnyRecord]) -> None:
        """Take in records: repeats are joined with what they repeat, and outcomes with what they judge."""
        for record in records:
            if isinstance(record, Outcome):
                self._judge(record)
                continue
            entry = entry_of(record)
            if entry is None:
                continue
            last = self.kept[-1] if self.kept else None
            if last is not None and last.key == entry.key and not isinstance(record, Event):
                last.last_step, last.count, last.time = entry.last_step, last.count + 1, entry.time
                last.last_seq, last.last_verdict = entry.last_seq, ""
                last.head, last.done, last.message, last.severity = (
                    entry.head,
                    entry.done,
                    entry.message,
                    entry.severity,
                )
                entry = last
            else:
                self.kept.append(entry)
            if isinstance(record, Intervention):
                self._by_seq[record.seq] = record.step, entry
        if len(self.kept) > KEPT:
            self.kept = self.kept[-KEPT:]
            self._by_seq = dict(list(self._by_seq.items())[-10 * KEPT :])
            self._verdicts = {seq: verdict for seq, verdict in self._verdicts.items() if seq in self._by_seq}

    def _judge(self, record: Outcome) -> None:
        """Count a verdict; of an intervention that is judged again after a resume the last one counts."""
        step, entry = self._by_seq.get(record.of, (0, None))
        if entry is None or not record.judges(step):
            return
        before = self._verdicts.get(record.of)
        if before is not None:
            entry.outcomes[before] -= 1
            if not entry.outcomes[before]:
                del entry.outcomes[before]
        entry.outcomes[record.verdict] = entry.outcomes.get(record.verdict, 0) + 1
        entry.judged = record.reason
        self._verdicts[record.of] = record.verdict
        if record.of == entry.last_seq:
            entry.last_verdict = record.verdict


def entry_of(record: AnyRecord) -> Entry | None:
    """Return what a person is told of a record; None when it is nothing."""
    step = record.step
    if isinstance(record, Event):
        if record.event in ENDINGS:
            return None
        severity = "warn" if record.event == "internal_error" else "info"
        return Entry(
            (record.event,),
            step,
            step,
            severity,
            record.event.replace("_", " "),
            message=record.message,
            time=record.time,
        )
    if isinstance(record, Outcome) or (isinstance(record, Withheld) and record.reason not in REASONS):
        return None
    key: tuple[str, ...]
    if isinstance(record, Intervention):
        key = (record.diagnosis, record.rule, record.remedy)
        done = record.remedy + (f": {record.change.summary}" if record.change.summary else "")
    else:
        key = (record.diagnosis, record.rule, record.remedy, record.reason)
        done = " ".join(filter(None, [REASONS[record.reason], record.remedy]))
        done += f" ({record.detail})" if record.detail else ""
    finding = record.finding
    head = record.diagnosis + (where(finding) if finding is not None else "")
    severity = finding.severity if finding is not None else "info"
    message = finding.message if finding is not None else ""
    entry = Entry(key, step, step, severity, head, done, message, time=record.time)
    entry.diagnosis, entry.remedy, entry.last_seq = record.diagnosis, record.remedy, record.seq
    entry.is_done = isinstance(record, Intervention)
    return entry


def where(finding: Finding) -> str:
    """Return the parameter that is concerned most, and how many there are beside it.

    Example:
        >>> where(Finding(diagnosis="nonfinite", step=3, parameters=("h.0.weight", "h.1.weight"), num_parameters=7))
        ' in h.0.weight (+6 more)'
    """
    if not finding.parameters:
        return ""
    more = f" (+{finding.num_parameters - 1} more)" if finding.num_parameters > 1 else ""
    return f" in {finding.parameters[0]}{more}"


def verdicts(entry: Entry) -> str:
    """Return what became of it: the verdict, or how many there were of each; "" while nothing was judged.

    Example:
        >>> verdicts(Entry(("a",), 1, 9, "warn", "a", count=3, outcomes={"helped": 2, "worse": 1}))
        'helped 2, worse 1'
    """
    if entry.count == 1:
        return "".join(WORDS[verdict] for verdict in entry.outcomes)  # type: ignore[index]
    return ", ".join(f"{WORDS[verdict]} {count}" for verdict, count in entry.outcomes.items())  # type: ignore[index]
