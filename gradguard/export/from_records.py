"""The tables `interventions` and `events`: a row a record of the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradguard.audit.read import Run
from gradguard.export.table import Block, Column, Table, Values, masked
from gradguard.record.encode import to_json
from gradguard.records import AnyRecord, Event, Intervention, Withheld


INTERVENTIONS = (
    Column("seq", "int64", "Number of the record, from 0 in the order of writing."),
    Column("time", "text", "When it was written: UTC, ISO 8601."),
    Column("step", "int64", "Optimizer step, from 0."),
    Column("done", "bool", "It was carried out; otherwise `reason` says why not."),
    Column("diagnosis", "text", "What was found, or `always`."),
    Column("remedy", "text", "What was done or was due; empty when no rule acted."),
    Column("rule", "text", "The policy's rule; empty when none applied."),
    Column("rung", "int64", "0 for the rule's own action, k for its k-th escalation."),
    Column("reason", "text", "Why: fired, escalated, gave_up; or why not: dry_run, cooldown, budget, ..."),
    Column("severity", "text", "info, warn or critical.", True),
    Column("parameter", "text", "The parameter that was worst.", True),
    Column("num_parameters", "int64", "How many parameters were concerned.", True),
    Column("statistic", "text", "Name of the number that was judged.", True),
    Column("value", "float64", "That number at the step.", True),
    Column("baseline", "float64", "What it was compared with.", True),
    Column("threshold", "float64", "The value from which the alarm is raised.", True),
    Column("message", "text", "What was found, in a sentence.", True),
    Column("change", "text", "What the remedy changed, in a few words.", True),
    Column("before", "text", "Numbers before the change, as a JSON object.", True),
    Column("after", "text", "The same numbers after it.", True),
    Column("detail", "text", "Why it was not done, in a sentence.", True),
    Column("sample_ids", "text", "What the user passed to observe for the step, as a JSON list.", True),
    Column("verdict", "text", "helped, no_effect, worse or unknown; missing when it was not judged.", True),
    Column("judged_at", "int64", "Step at which it was judged.", True),
    Column("recurrences", "int64", "How often the same came back until then.", True),
    Column("loss_before", "float64", "Median of the losses before.", True),
    Column("loss_after", "float64", "Median of the losses after.", True),
    Column("loss_noise", "float64", "The difference of both that the usual noise explains.", True),
)
EVENTS = (
    Column("seq", "int64", "Number of the record, from 0 in the order of writing."),
    Column("time", "text", "When it was written: UTC, ISO 8601."),
    Column("step", "int64", "Optimizer step, from 0."),
    Column("event", "text", "What happened: attached, resumed, scaler_skip, closed, ..."),
    Column("message", "text", "In a sentence."),
    Column("data", "text", "Numbers and words, as a JSON object."),
)


class _Records(Table):
    """A table with a row a record."""

    def __init__(self, records: Sequence[AnyRecord]) -> None:
        self.records = records
        self.num_rows = len(records)

    def rows(self, start: int, stop: int) -> Block:
        """Return rows `start` to `stop`."""
        told = [self._cells(record) for record in self.records[start:stop]]
        return [_values(column, [cells.get(column.name) for cells in told]) for column in self.columns]

    def _cells(self, record: AnyRecord) -> dict[str, Any]:
        return {**record.model_dump(include={"seq", "time", "step"})}


class Interventions(_Records):
    """What was done and what was not, with the evidence and the outcome.

    Args:
        run: as read.
    """

    name = "interventions"
    columns = INTERVENTIONS

    def __init__(self, run: Run) -> None:
        super().__init__([record for record in run.records if isinstance(record, (Intervention, Withheld))])

    def _cells(self, record: AnyRecord) -> dict[str, Any]:
        assert isinstance(record, (Intervention, Withheld))
        cells = super()._cells(record)
        for name in ("diagnosis", "remedy", "rule", "rung", "reason"):
            cells[name] = getattr(record, name)
        cells["done"] = isinstance(record, Intervention)
        if record.sample_ids:
            cells["sample_ids"] = to_json(record.sample_ids)
        if (finding := record.finding) is not None:
            for name in ("severity", "num_parameters", "statistic", "value", "baseline", "threshold", "message"):
                cells[name] = getattr(finding, name)
            cells["parameter"] = finding.parameters[0] if finding.parameters else None
        if isinstance(record, Withheld):
            cells["detail"] = record.detail
            return cells
        change, outcome = record.change, record.outcome
        cells |= {"change": change.summary, "before": to_json(change.before), "after": to_json(change.after)}
        if outcome is not None:
            for name in ("verdict", "recurrences", "loss_before", "loss_after", "loss_noise"):
                cells[name] = getattr(outcome, name)
            cells["judged_at"] = outcome.step
        return cells


class Events(_Records):
    """What else was noted.

    Args:
        run: as read.
    """

    name = "events"
    columns = EVENTS

    def __init__(self, run: Run) -> None:
        super().__init__(run.events)

    def _cells(self, record: AnyRecord) -> dict[str, Any]:
        assert isinstance(record, Event)
        return {
            **super()._cells(record),
            "event": record.event,
            "message": record.message,
            "data": to_json(record.data),
        }


def _values(column: Column, cells: list[Any]) -> Values:
    if column.kind == "text":
        return cells
    is_missing = np.array([cell is None for cell in cells], dtype=bool)
    low, high = (-(2**63), 2**63 - 1) if column.kind == "int64" else (-np.inf, np.inf)
    whole = [0 if cell is None else _bounded(cell, low, high) for cell in cells]
    return masked(np.array(whole, dtype=column.kind), is_missing)


def _bounded(number: float, low: float, high: float) -> float:
    """Return the nearest number that the column can hold: a record may hold whole numbers of any length."""
    if number != number:
        return number
    try:
        return min(max(number, low), high) if isinstance(low, int) else float(number)
    except OverflowError:
        return high if number > 0 else low
