"""Tells a person, through loguru, what the guard found and did: one line a record, fewer when they come in hundreds."""

from __future__ import annotations

from collections import Counter

from loguru import logger
from pydantic import PrivateAttr

from gradguard.contracts import SINKS, Sink
from gradguard.printable import printable
from gradguard.records import AnyRecord, Event, Finding, Intervention, Outcome, Withheld


SHOWN_IN_FULL = 3  # repeats of one kind of line before they are thinned out

# Reasons that a person should hear of. The others follow from a line that was shown (cooldown, superseded) or are no
# alarm (warmup, below_severity); the journal has them all.
REASONS = {
    "dry_run": "would have done",
    "budget": "a budget is spent, not done",
    "no_rule": "no rule acts on it",
    "unavailable": "could not do",
    "failed": "failed to do",
}
EVENT_LEVELS = {"internal_error": "ERROR", "scaler_skip": "DEBUG"}
VERDICTS = {"helped": ("INFO", "helped"), "no_effect": ("INFO", "had no effect"), "worse": ("WARNING", "made it worse")}


@SINKS.register
class Console(Sink):
    """One loguru line for each record that a person should see.

    Interventions are warnings, errors when the finding is critical. Of lines that repeat (same rule and remedy) the
    first three are shown, then the 10th, 30th, 100th, 300th, ... with the count. Names are shown as text, whatever
    characters they hold.
    """

    name = "console"
    what = "Prints one line for each thing that the guard found and did."

    _counts: Counter[tuple[str, ...]] = PrivateAttr(default_factory=Counter)

    def emit(self, record: AnyRecord) -> None:
        """Show one record, unless it is a repeat that is skipped."""
        key: tuple[str, ...]
        if isinstance(record, Intervention):
            key = (record.rule, record.remedy)
            done = f"{record.remedy}: {record.change.summary}"
            self._show(_level(record.finding), key, _line(record, record.finding, done))
        elif isinstance(record, Withheld) and record.reason in REASONS:
            key = (record.rule, record.remedy, record.diagnosis, record.reason)
            done = " ".join(filter(None, [REASONS[record.reason], record.remedy]))
            done += f" ({record.detail})" if record.detail else ""
            self._show(_level(record.finding), key, _line(record, record.finding, done))
        elif isinstance(record, Outcome) and record.verdict in VERDICTS:
            level, words = VERDICTS[record.verdict]
            line = f"step {record.step}: what was done at step {record.step - record.horizon} {words}: {record.reason}"
            self._show(level, ("outcome", record.verdict), line)
        elif isinstance(record, Event):
            line = f"step {record.step}: {record.event}: {record.message}"
            self._show(EVENT_LEVELS.get(record.event, "INFO"), ("event", record.event), line)

    def _show(self, level: str, key: tuple[str, ...], line: str) -> None:
        self._counts[key] += 1
        count = self._counts[key]
        if count > SHOWN_IN_FULL:
            if not _is_milestone(count):
                return
            line = f"{line.rstrip()} ({count} times so far)"
        # The line goes in as an argument and without control characters: neither loguru nor the terminal interprets it.
        logger.log(level, "{}", printable(line.rstrip()))


def _line(record: Intervention | Withheld, finding: Finding | None, done: str) -> str:
    if finding is None:
        return f"step {record.step}: {record.diagnosis} -> {done}"
    more = f" (+{finding.num_parameters - 1} more)" if finding.num_parameters > 1 else ""
    where = f" in {finding.parameters[0]}{more}" if finding.parameters else ""
    return (
        f"step {record.step}: {finding.diagnosis}{where}{_numbers(finding)} -> {done}. {finding.message}".removesuffix(
            ". "
        )
    )


def _numbers(finding: Finding) -> str:
    if finding.value is None:
        return ""
    against = f" against {finding.baseline:.4g}" if finding.baseline is not None else ""
    return f", {finding.statistic or 'value'} {finding.value:.4g}{against}"


def _level(finding: Finding | None) -> str:
    if finding is None or finding.severity == "info":
        return "INFO"
    return "ERROR" if finding.severity == "critical" else "WARNING"


def _is_milestone(count: int) -> bool:
    """Whether `count` is 1 or 3 times a power of ten."""
    while count % 10 == 0:
        count //= 10
    return count in (1, 3)
