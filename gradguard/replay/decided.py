"""What was decided at a step, apart from where it is written: what two sides are compared by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from gradguard.policy.schema import Policy
from gradguard.record.encode import to_json
from gradguard.records import AnyRecord, Intervention, Withheld
from gradguard.replay.answers import named_remedies


Decision = Intervention | Withheld


class Decided(NamedTuple):
    """What was decided about one finding.

    Args:
        remedy: its name, "" where there was none.
        options: as in a policy file, those that are no defaults; "" when they are not known.
        reason: why it was withheld, "" when it was carried out.
        severity: of the finding.
        num: how many were alike.
    """

    remedy: str
    options: str
    reason: str
    severity: str
    num: int = 1

    def __str__(self) -> str:
        return self.told()

    def told(self, has_options: bool = True, has_severity: bool = True) -> str:
        """Return it in words."""
        times = f"{self.num}x " if self.num > 1 else ""
        options = f" {self.options}" if self.options and has_options else ""
        reason = f" ({self.reason.replace('_', ' ')})" if self.reason else ""
        severity = f" [{self.severity}]" if has_severity and self.severity else ""
        return f"{times}{self.remedy or 'nothing'}{options}{reason}{severity}"


def decisions(records: Iterable[AnyRecord]) -> list[Decision]:
    """Return what was done and what was withheld, in order."""
    return [record for record in records if isinstance(record, (Intervention, Withheld))]


def signature(record: Decision) -> str:
    """Return all of a decision but its place in the file, its time, the data it is about and what came of it."""
    told = record.model_dump(exclude={"v", "seq", "time", "sample_ids", "change", "outcome", "finding"})
    return to_json({**told, "finding": record.finding})


def by_place(records: Iterable[Decision], policy: Policy | None) -> dict[tuple[int, str], list[Decided]]:
    """Return what was decided, by step and diagnosis."""
    places: defaultdict[tuple[int, str], list[Decided]] = defaultdict(list)
    for record in records:
        places[record.step, record.diagnosis].append(decided(record, policy))
    return places


def decided(record: Decision, policy: Policy | None) -> Decided:
    """Return what a record says was decided; `policy` is the one that decided, None when it is not known."""
    remedies = named_remedies(record, policy)
    options = _short(remedies[0].model_dump(mode="json", exclude_defaults=True)) if remedies else "{}"
    return Decided(
        record.remedy,
        options if options != "{}" else "",
        record.reason if isinstance(record, Withheld) else "",
        record.finding.severity if record.finding is not None else "",
    )


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
