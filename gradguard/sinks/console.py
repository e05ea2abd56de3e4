"""Tells a person, through loguru, what the guard found and did: one line an action, few where they come in hundreds.

step 203: loss_spike: The loss jumped to 20.5 from a usual 0.286. Done: step skipped (skip_step).
step 204: loss_spike again, loss 19.8 against 0.286. Done: rolled back 17 steps (rollback).
step 253: skip_step at step 203 helped: loss_spike came back once in 50 steps and the loss is 0.241, as before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from loguru import logger
from pydantic import PrivateAttr

from gradguard.contracts import DIAGNOSES, SINKS, Sink
from gradguard.outcomes.main_remedy import main_first
from gradguard.printable import printable, short
from gradguard.records import AnyRecord, Event, Finding, Intervention, Outcome, Withheld


SHOWN = 3  # repeats of one action before they are thinned out
WAITING = 1000  # steps with actions that wait for their judgement, remembered at most

# Reasons that a person should hear of. The others follow from a line that was shown (cooldown, superseded) or are no
# alarm (warmup, below_severity); the journal has them all.
REASONS = {
    "dry_run": "Would have done",
    "budget": "Not done, a budget is spent",
    "no_rule": "No rule of the policy acts on it",
    "unavailable": "Could not be done",
    "failed": "Failed, by an error in the remedy",
}
TELLS = "notify"  # the remedy that changes nothing
ENDINGS = ("closed", "stopped", "failed")
EVENT_LEVELS = {"scaler_skip": "DEBUG"}
VERDICTS = {"helped": ("INFO", "helped"), "no_effect": ("INFO", "had no effect"), "worse": ("WARNING", "made it worse")}


@SINKS.register
class Console(Sink):
    """One loguru line for each record that a person should see.

    What is found is told in full the first time, in short when it comes again; what more is done about it in the same
    step follows without it. Interventions are warnings, errors when the finding is critical. Of lines that repeat (same
    rule and remedy) the first three are shown, then the 10th, 30th, 100th, 300th, ... with the count. The last line
    says what it came to. Names are shown as text, whatever characters they hold.
    """

    name = "console"
    what = "Prints one line for each thing that the guard found and did."

    _counts: Counter[tuple[str, ...]] = PrivateAttr(default_factory=Counter)
    _told: set[str] = PrivateAttr(default_factory=set)
    _now: tuple[int, str, bool] = PrivateAttr(default=(-1, "", False))
    _waiting: dict[tuple[int, str], list[str]] = PrivateAttr(default_factory=dict)
    _seqs: dict[int, tuple[int, str]] = PrivateAttr(default_factory=dict)
    _events: dict[str, Counter[str]] = PrivateAttr(default_factory=dict)
    _last: dict[str, tuple[int, str]] = PrivateAttr(default_factory=dict)
    _done: Counter[tuple[str, str]] = PrivateAttr(default_factory=Counter)
    _verdicts: Counter[str] = PrivateAttr(default_factory=Counter)

    def emit(self, record: AnyRecord) -> None:
        """Show one record, unless it is a repeat that is skipped."""
        key: tuple[str, ...]
        if isinstance(record, Intervention):
            self._count(record)
            key, place = (record.rule, record.remedy), (record.step, record.diagnosis)
            if record.remedy != TELLS and len(self._waiting) < WAITING:
                self._waiting.setdefault(place, []).append(record.remedy)
                self._seqs[record.seq] = place
            self._tell(record, key, _done(record))
        elif isinstance(record, Withheld) and record.reason in REASONS:
            key = (record.rule, record.remedy, record.diagnosis, record.reason)
            self._tell(record, key, _not_done(record))
        elif isinstance(record, Outcome):
            self._judge(record)
        elif isinstance(record, Event) and record.event in ENDINGS:
            self._show("INFO", ("ending",), f"{record.message}. {self._sum() if 'after' in record.message else ''}")
        elif isinstance(record, Event) and record.event == "attached":
            self._show("INFO", ("attached",), record.message)
        elif isinstance(record, Event) and record.event != "internal_error":  # the guard tells its own faults, once
            line = f"step {record.step}: {record.message or record.event}"
            self._show(EVENT_LEVELS.get(record.event, "INFO"), ("event", record.event), line)

    def _tell(self, record: Intervention | Withheld, key: tuple[str, ...], done: str) -> None:
        """Tell what was done, and what for as far as that is new."""
        finding = record.finding
        now = (record.step, finding.message if finding is not None else record.diagnosis)
        if now == self._now[:2]:
            line = f"{'also ' if self._now[2] else ''}{done[:1].lower()}{done[1:]}"
        else:
            line = f"{self._found(record)}. {done}".rstrip(". ")
        helps = ""
        if record.remedy == TELLS or (finding is not None and finding.advice):
            helps = _advice(finding) if finding is not None and finding.diagnosis not in self._told else ""
        if self._show(_level(finding), key, f"step {record.step}: {line}.{helps}"):
            self._now = (*now, bool(done))
            self._told.add(record.diagnosis)

    def _found(self, record: Intervention | Withheld) -> str:
        """Return what was found: in full the first time, the numbers alone when it comes again."""
        finding = record.finding
        if finding is None:
            return record.diagnosis
        if finding.diagnosis in self._told:
            return f"{finding.diagnosis} again{_where(finding)}{_numbers(finding)}"
        message = finding.message.rstrip(". ")
        if not message:
            return f"{finding.diagnosis}{_where(finding)}{_numbers(finding)}"
        return f"{finding.diagnosis}{_where(finding, message)}: {message}"

    def _judge(self, record: Outcome) -> None:
        """Tell what became of all that was done at one step about one thing, in one line."""
        place = self._seqs.pop(record.of, None)
        remedies = self._waiting.pop(place, []) if place is not None else ["what was done"]
        if not remedies:  # told with another remedy of the same step
            return
        self._verdicts[record.verdict] += 1
        if record.verdict not in VERDICTS:
            return
        level, words = VERDICTS[record.verdict]
        diagnosis = place[1] if place is not None else "it"
        reason = f"{diagnosis}{record.reason[2:]}" if record.reason.startswith("it ") else record.reason
        which = " + ".join(main_first(remedies))
        line = f"step {record.step}: {which} at step {record.step - record.horizon} {words}: {reason}"
        self._show(level, ("outcome", diagnosis, which, record.verdict), line, shown=1)

    def _count(self, record: Intervention) -> None:
        """Count what is done; all that is done about one thing at one step is one event."""
        kind = "told" if record.remedy == TELLS else "acted"
        last = self._last.get(record.diagnosis, (-1, ""))
        counts = self._events.setdefault(record.diagnosis, Counter())
        if kind == "acted":
            self._done[record.remedy, record.diagnosis] += 1
        if last[0] != record.step:
            counts[kind] += 1
        elif (last[1], kind) == ("told", "acted"):  # told first, and dealt with in the same step
            counts.update(acted=1, told=-1)
        else:
            return
        self._last[record.diagnosis] = (record.step, kind)

    def _sum(self) -> str:
        """Return what the run came to, as far as this sink was told."""
        acted = {name: counts["acted"] for name, counts in self._events.items() if counts["acted"]}
        told = {name: counts["told"] for name, counts in self._events.items() if counts["told"]}
        left: dict[str, int] = {}
        for key, count in self._counts.items():
            if len(key) == 4 and key[3] in ("dry_run", "no_rule"):
                left[key[2]] = max(left.get(key[2], 0), count)
        parts = []
        if acted:
            what = "; ".join(f"{self._remedies(name)} against {name}" for name in acted)
            parts.append(f"The guard acted {_times(sum(acted.values()))}: {what}. {self._judged()}")
        if told:
            parts.append(f"It {'also ' if acted else ''}warned of {_counted(told)}, and left that to you.")
        if left:
            parts.append(f"Found, and left alone as the policy says: {_counted(left)}.")
        return " ".join(parts) or "No alarm was raised."

    def _remedies(self, diagnosis: str) -> str:
        counts = {remedy: count for (remedy, name), count in self._done.items() if name == diagnosis}
        return _counted({remedy: counts[remedy] for remedy in main_first(counts)})

    def _judged(self) -> str:
        known = {words: self._verdicts[name] for name, (_, words) in VERDICTS.items() if self._verdicts[name]}
        total = sum(known.values())
        if not total:
            return "Whether that helped could not be judged."
        if len(known) == 1:
            (words,) = known
            return f"It {words}." if total == 1 else f"All {total:,} that were judged {words}."
        return f"Of {total:,} that were judged, {', '.join(f'{count:,} {words}' for words, count in known.items())}."

    def _show(self, level: str, key: tuple[str, ...], line: str, shown: int = SHOWN) -> bool:
        """Show a line unless it is one repeat of many; return whether it was shown."""
        self._counts[key] += 1
        count = self._counts[key]
        if count > shown:
            if count < 10 or not _is_milestone(count):
                return False
            line = f"{line.rstrip()} ({count} times so far)"
        elif count == shown > 1:
            line = f"{line.rstrip()} ({count} times so far; next shown: the 10th, 30th, 100th, ...)"
        # The line goes in as an argument and without control characters: neither loguru nor the terminal interprets it.
        logger.log(level, "{}", printable(line.rstrip()))
        return True


def _level(finding: Finding | None) -> str:
    if finding is None or finding.severity == "info":
        return "INFO"
    return "ERROR" if finding.severity == "critical" else "WARNING"


def _done(record: Intervention) -> str:
    if record.remedy == TELLS:  # what changes something, if anything does, is told in the lines that follow
        return ""
    return f"Done: {record.change.summary.rstrip('.')} ({record.remedy})"


def _not_done(record: Withheld) -> str:
    if record.remedy == TELLS and record.reason == "dry_run":
        return ""
    what = f": {record.remedy}" if record.remedy else ""
    why = f" ({record.detail.rstrip('.')})" if record.detail else ""
    return f"{REASONS[record.reason]}{what}{why}"


def _where(finding: Finding, message: str = "") -> str:
    """Return where it was found, unless the message says so."""
    if not finding.parameters:
        return ""
    name = finding.parameters[0]
    if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", message):
        return ""
    more = f" and {finding.num_parameters - 1} more" if finding.num_parameters > 1 else ""
    return f" in {name if '.' in name else repr(name)}{more}"


def _numbers(finding: Finding) -> str:
    if finding.value is None:
        return ""
    if finding.value == finding.threshold:  # the alarm came from elsewhere, such as the loss
        return ""
    against = f" against {short(finding.baseline)}" if finding.baseline is not None else ""
    return f", {finding.statistic or 'value'} {short(finding.value)}{against}"


def _advice(finding: Finding) -> str:
    """Return what a person can do: what the finding says, or else the first that the diagnosis knows."""
    if finding.advice:
        return f" What helps: {finding.advice}"
    try:
        cure, _, _more = DIAGNOSES.get(finding.diagnosis).cure.partition(". ")
    except KeyError:  # a class that a policy was given in Python, under no name
        return ""
    return f" What helps: {cure.rstrip('.')}. More: gradguard explain {finding.diagnosis}" if cure else ""


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(name if count == 1 else f"{name} {_times(count)}" for name, count in counts.items())


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _is_milestone(count: int) -> bool:
    """Whether `count` is 1 or 3 times a power of ten."""
    while count % 10 == 0:
        count //= 10
    return count in (1, 3)
