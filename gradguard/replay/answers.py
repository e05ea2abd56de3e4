"""What the remedies of the recorded run answered when they were asked to act."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gradguard.contracts import Remedy
from gradguard.intervention import Answer
from gradguard.policy.decide import Action
from gradguard.policy.schema import Policy
from gradguard.records import AnyRecord, Intervention, Withheld


ANSWERED = ("unavailable", "failed")  # reasons that a remedy gives; all others are the policy's


class Answers:
    """The answers, each to be had once.

    Args:
        records: of the run.
        policy: of the run, None when it is not known.
    """

    def __init__(self, records: Iterable[AnyRecord], policy: Policy | None) -> None:
        self._by_step: defaultdict[int, list[Intervention | Withheld]] = defaultdict(list)
        self._rules = {rule.name: rule for rule in policy.rules} if policy is not None else {}
        self._when_spent = policy.when_spent() if policy is not None else ()
        self._has_policy = policy is not None
        for record in records:
            if isinstance(record, Intervention) or (isinstance(record, Withheld) and record.reason in ANSWERED):
                self._by_step[record.step].append(record)

    def take(self, action: Action, step: int) -> Answer | None:
        """Return what the run's remedy answered to the same action at this step, None when it was not asked."""
        for index, record in enumerate(told := self._by_step.get(step, [])):
            if self._is_about(record, action):
                del told[index]
                if isinstance(record, Intervention):
                    return Answer(record.change)
                return Answer(None, record.reason, record.detail)
        return None

    def are_left(self, step: int) -> bool:
        """Return whether the run did something at this step that nobody asked about yet."""
        return any(isinstance(record, Intervention) for record in self._by_step.get(step, ()))

    def _is_about(self, record: Intervention | Withheld, action: Action) -> bool:
        is_alike = (record.rule, record.rung, record.remedy, record.diagnosis) == (
            action.rule.name,
            action.rung,
            action.remedy.name,
            action.finding.diagnosis,
        )
        return is_alike and (not self._has_policy or _is_among(action.remedy, self.remedies(record)))

    def remedies(self, record: Intervention | Withheld) -> tuple[Remedy, ...]:
        """Return the remedies that a record may be about, as the run's policy had them; () when that is not known."""
        rule = self._rules.get(record.rule)
        rungs = rule.ladder() if rule is not None else ()
        candidates = (*(rungs[record.rung] if record.rung < len(rungs) else ()), *self._when_spent)
        return tuple(remedy for remedy in candidates if remedy.name == record.remedy)


def _is_among(remedy: Remedy, others: Iterable[Remedy]) -> bool:
    return any(remedy.as_policy() == other.as_policy() for other in others)
