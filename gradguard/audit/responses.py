"""What the guard did about one thing at one step: one event, however many remedies it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import Field

from gradguard.outcomes.main_remedy import main_first
from gradguard.records import Frozen, Intervention, Outcome, Verdict


TELLS, ENDS = "notify", "stop"  # remedies that have no outcome
RANK: tuple[Verdict, ...] = ("worse", "no_effect", "helped", "unknown")  # of several judgements the first counts


class Response(NamedTuple):
    """All that was done about one diagnosis at one step.

    Args:
        step: optimizer step.
        diagnosis: what was found.
        remedies: what was done, the one that weighs most first; what only tells of it is left out if anything acts.
        records: the interventions.
    """

    step: int
    diagnosis: str
    remedies: tuple[str, ...]
    records: tuple[Intervention, ...]

    @property
    def acts(self) -> bool:
        """Whether anything was changed because of what was found; routine is no event."""
        return self.remedies[0] != TELLS and self.records[0].finding is not None

    @property
    def outcome(self) -> Outcome | None:
        """The judgement; None while there is none, or when there will be none."""
        judged = [record.outcome for record in self.records if record.outcome is not None]
        return min(judged, key=lambda outcome: RANK.index(outcome.verdict), default=None)

    @property
    def verdict(self) -> Verdict | None:
        """Its verdict, None without one."""
        return None if self.outcome is None else self.outcome.verdict


class ResponseGroup(Frozen):
    """Responses to the same diagnosis with the same remedies.

    Args:
        diagnosis: what was found, or "always".
        remedies: what was done, the one that weighs most first.
        count: how often.
        first_step: step of the first.
        last_step: step of the last.
        worst_parameter: the parameter that was most often the worst; "" when none was named.
        outcomes: number by verdict, judged ones only.
    """

    diagnosis: str
    remedies: tuple[str, ...]
    count: int
    first_step: int
    last_step: int
    worst_parameter: str = ""
    outcomes: dict[str, int] = Field(default_factory=dict)


def responses(interventions: Iterable[Intervention]) -> list[Response]:
    """Return what was done, event by event, in the order of the record."""
    events: dict[tuple[int, str], list[Intervention]] = {}
    for record in interventions:
        events.setdefault((record.step, record.diagnosis), []).append(record)
    return [_response(*key, records) for key, records in events.items()]


def groups(events: Sequence[Response]) -> tuple[ResponseGroup, ...]:
    """Return the events by what was found and done, in the order of their first step."""
    members: dict[tuple[str, tuple[str, ...]], list[Response]] = {}
    for event in events:
        members.setdefault((event.diagnosis, event.remedies), []).append(event)
    return tuple(
        ResponseGroup(
            diagnosis=diagnosis,
            remedies=remedies,
            count=len(group),
            first_step=group[0].step,
            last_step=group[-1].step,
            worst_parameter=_mostly_in(group),
            outcomes=dict(sorted(Counter(event.verdict for event in group if event.verdict is not None).items())),
        )
        for (diagnosis, remedies), group in members.items()
    )


def _response(step: int, diagnosis: str, records: Sequence[Intervention]) -> Response:
    names = main_first(record.remedy for record in records)
    remedies = tuple(name for name in names if name != TELLS) or tuple(names)
    return Response(step, diagnosis, remedies, tuple(records))


def _mostly_in(group: Sequence[Response]) -> str:
    findings = [event.records[0].finding for event in group]
    worst = Counter(finding.parameters[0] for finding in findings if finding is not None and finding.parameters)
    return worst.most_common(1)[0][0] if worst else ""
