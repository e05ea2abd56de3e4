"""The table of interventions, and of what was due and not done; each with its evidence, as far as the page has room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradguard.audit.read import Run
from gradguard.audit.responses import ENDS, TELLS
from gradguard.cli.render import REASONS
from gradguard.printable import printable
from gradguard.record.encode import to_json
from gradguard.records import Finding, Intervention, Number, Outcome, Withheld


MAX_ROWS = 20_000  # of the whole page
MAX_DETAIL_BYTES = 3_000_000  # likewise
MAX_TEXT = 2_000  # characters of one text from the record
NOT_JUDGED, TOLD, NOT_DONE = "waiting", "told", "not_done"  # beside the verdicts
Action = Intervention | Withheld


class Words:
    """Texts that come back in many rows, each written once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def index(self, text: str) -> int:
        """Return the place of a text among all."""
        return self.texts.setdefault(shown(text), len(self.texts))


def actions(run: Run, share: float = 1.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table, and the evidence behind its rows.

    Args:
        run: whose.
        share: of the page that it may take, in (0, 1].

    Returns:
        {"texts": [...], "rows": [[step, diagnosis, remedy, layer, outcome, summary, seq]], all but the first and last
        of them places in "texts", "left_out": rows for which there was no room}, and {place of a row: {...}}.
        Interventions go before what was not done, and the evidence of what is rare before the rest.
    """
    words = Words()
    records: list[Action] = sorted(
        [*run.interventions, *run.withheld], key=lambda record: (isinstance(record, Withheld), record.step, record.seq)
    )
    limit = max(1, int(MAX_ROWS * share))
    chosen = sorted(records[:limit], key=lambda record: (record.step, record.seq))
    rows = [_row(words, record) for record in chosen]
    details: dict[str, Any] = {}
    room = MAX_DETAIL_BYTES * share
    for place in _rare_first(rows):
        detail = _detail(words, chosen[place])
        room -= len(to_json(detail))
        if room < 0:
            break
        details[str(place)] = detail
    return {"rows": rows, "left_out": len(records) - len(chosen), "texts": list(words.texts)}, details


def shown(text: object) -> str:
    """Return a text from the record as the page shows it: visible, and no longer than a screen."""
    whole = printable(str(text))
    return whole if len(whole) <= MAX_TEXT else whole[:MAX_TEXT] + " ..."


def outcome_of(record: Action) -> str:
    """Return the verdict on an intervention, or what stands in its place."""
    if isinstance(record, Withheld):
        return NOT_DONE
    if record.remedy in (TELLS, ENDS):
        return TOLD if record.remedy == TELLS else ENDS
    return record.outcome.verdict if record.outcome is not None else NOT_JUDGED


def _row(words: Words, record: Action) -> list[int]:
    finding = record.finding
    layer = finding.parameters[0] if finding is not None and finding.parameters else ""
    if isinstance(record, Withheld):
        summary = REASONS.get(record.reason, record.reason) + (f": {record.detail}" if record.detail else "")
    else:
        summary = record.change.summary
    texts = (record.diagnosis, record.remedy, layer, outcome_of(record), summary)
    return [record.step, *(words.index(text) for text in texts), record.seq]


def _rare_first(rows: Sequence[list[int]]) -> list[int]:
    """Return the places of rows: the first of every kind, then the others in order."""
    first: dict[tuple[int, ...], int] = {}
    for place, row in enumerate(rows):
        first.setdefault((row[1], row[2], row[4]), place)
    early = set(first.values())
    return [*first.values(), *(place for place in range(len(rows)) if place not in early)]


def _detail(words: Words, record: Action) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "rule": words.index(record.rule) if record.rule else None,
        "rung": record.rung,
        "reason": words.index(record.reason.replace("_", " ")),
    }
    if record.finding is not None:
        detail["finding"] = _finding(words, record.finding)
    if record.sample_ids:
        detail["samples"] = shown(", ".join(map(str, record.sample_ids)))
    if isinstance(record, Intervention):
        names = dict.fromkeys([*record.change.before, *record.change.after])
        detail["change"] = [
            [words.index(name), _value(record.change.before.get(name)), _value(record.change.after.get(name))]
            for name in names
        ]
        if record.outcome is not None:
            detail["outcome"] = _outcome(record.outcome)
    return detail


def _finding(words: Words, finding: Finding) -> dict[str, Any]:
    return {
        "severity": words.index(finding.severity),
        "message": shown(finding.message),
        "advice": words.index(finding.advice) if finding.advice else None,
        "statistic": words.index(finding.statistic or "value"),
        "numbers": [finding.value, finding.baseline, finding.threshold, finding.window],
        "evidence": _pairs(words, finding.evidence),
        "layers": [words.index(name) for name in finding.parameters],
        "more": max(0, finding.num_parameters - len(finding.parameters)),
        "follows": [words.index(finding.follows.diagnosis), finding.follows.step] if finding.follows else None,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "step": outcome.step,
        "text": shown(outcome.reason),
        "losses": [outcome.loss_before, outcome.loss_after, outcome.loss_noise],
    }


def _pairs(words: Words, values: Mapping[str, Number | str]) -> list[list[Any]]:
    return [[words.index(name), _value(value)] for name, value in values.items()]


def _value(value: Number | str) -> Number | str:
    return shown(value) if isinstance(value, str) else value
