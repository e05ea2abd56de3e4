"""What the remedies of the recorded run answered when they were asked to act."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gradguard.contracts import Remedy
from gradguard.flow.intervention import Answer
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
        self._policy = policy
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
        if not is_alike or self._policy is None:
            return is_alike
        named = named_remedies(record, self._policy)
        return any(remedy.as_policy() == action.remedy.as_policy() for remedy in named)


def named_remedies(record: Intervention | Withheld, policy: Policy | None) -> tuple[Remedy, ...]:
    """Return the remedies of a policy that a record may be about; () when that is not known."""
    if policy is None:
        return ()
    ladders = [rule.ladder() for rule in policy.rules if rule.name == record.rule]
    rung = ladders[0][record.rung] if ladders and record.rung < len(ladders[0]) else ()
    return tuple(remedy for remedy in (*rung, *policy.when_spent()) if remedy.name == record.remedy)
