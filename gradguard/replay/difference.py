"""What a run did and what another policy would have done, side by side; and from where on that is a guess."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradguard.contracts import REMEDIES
from gradguard.policy.schema import Policy
from gradguard.record.encode import to_json
from gradguard.records import Intervention
from gradguard.replay.backtest import Replayed
from gradguard.replay.decided import Decided, Decision, by_place, decided, decisions, signature
from gradguard.replay.recorded import Recorded
from gradguard.replay.routine import RoutineDifference, is_same_routine


Sides = tuple[tuple[Decided, ...] | None, tuple[Decided, ...] | None]


@dataclass(frozen=True)
class Difference:
    """Steps at which the same differed in the same way.

    Args:
        diagnosis: found by one or both.
        recorded: what the run decided, without what both did; None when it found nothing.
        replayed: what the policy would have, likewise.
        steps: at which, ascending.
        is_hypothetical: they come after the first step at which the policy would have changed the run's course.
    """

    diagnosis: str
    recorded: tuple[Decided, ...] | None
    replayed: tuple[Decided, ...] | None
    steps: tuple[int, ...]
    is_hypothetical: bool


@dataclass(frozen=True)
class Comparison:
    """A run beside what a policy would have made of it.

    Args:
        is_same: the same findings and decisions, and the same at every step; `is_exact`: to the last letter of the
            evidence, rules and rungs.
        first_difference: step, None when there is none.
        hypothetical_from: the first step whose numbers the policy might have changed, None when there is none.
        num_same: decisions that are alike.
        differences: in the order of their first steps.
        counts: by diagnosis: (findings in the run, in the replay, actions in the run, in the replay).
        routine: where the rules for every step would have done something else, None where they do the same.
    """

    is_same: bool
    is_exact: bool
    first_difference: int | None
    hypothetical_from: int | None
    num_same: int
    differences: tuple[Difference, ...]
    counts: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    routine: RoutineDifference | None = None


def compare(recorded: Recorded, policy: Policy, replayed: Replayed) -> Comparison:
    """Return how a replay by `policy` differs from what was recorded."""
    ours, theirs = decisions(recorded.run.records), decisions(replayed.records)
    is_exact = list(map(signature, ours)) == list(map(signature, theirs))
    is_exact &= recorded.policy is None or is_same_routine(recorded.policy, policy)
    course = _change_of_course(recorded, policy, ours, theirs, replayed)
    mine, others = by_place(ours, recorded.policy), by_place(theirs, policy)
    if recorded.policy is None:  # options of its remedies are not known
        others = by_place(theirs, None)
    found: dict[tuple[str, Sides, bool], list[int]] = {}
    num_same = 0
    for place in sorted({*mine, *others}):
        step, diagnosis = place
        left, right = Counter(mine.get(place, ())), Counter(others.get(place, ()))
        num_same += sum((left & right).values())
        if left != right:
            sides = _alone(left, right), _alone(right, left)
            found.setdefault((diagnosis, sides, course is not None and step >= course), []).append(step)
    differences = tuple(
        Difference(diagnosis, *sides, tuple(steps), is_late) for (diagnosis, sides, is_late), steps in found.items()
    )
    routine = replayed.routine
    firsts = [difference.steps[0] for difference in differences] + ([routine.first] if routine is not None else [])
    return Comparison(
        is_same=not firsts,
        is_exact=is_exact,
        first_difference=min(firsts, default=None),
        hypothetical_from=course,
        num_same=num_same,
        differences=differences,
        counts=_counts(ours, theirs),
        routine=routine,
    )


def _alone(own: Counter[Decided], other: Counter[Decided]) -> tuple[Decided, ...] | None:
    """Return what one side alone decided, None if it found nothing at all."""
    if not own:
        return None
    return tuple(one._replace(num=num) for one, num in sorted((own - other).items()))


def _counts(ours: Sequence[Decision], theirs: Sequence[Decision]) -> dict[str, tuple[int, int, int, int]]:
    names = sorted({record.diagnosis for record in (*ours, *theirs)})
    return {
        name: (_findings(ours, name), _findings(theirs, name), _actions(ours, name), _actions(theirs, name))
        for name in names
    }


def _findings(records: Sequence[Decision], diagnosis: str) -> int:
    return len({to_json(record.finding) for record in records if record.diagnosis == diagnosis})


def _actions(records: Sequence[Decision], diagnosis: str) -> int:
    return sum(isinstance(record, Intervention) and record.diagnosis == diagnosis for record in records)


def _change_of_course(
    recorded: Recorded, policy: Policy, ours: Sequence[Decision], theirs: Sequence[Decision], replayed: Replayed
) -> int | None:
    """Return the first step whose numbers the policy might have changed."""
    mine, others = _deeds(ours, recorded.policy), _deeds(theirs, policy if recorded.policy is not None else None)
    undone = [note.values.get("why") for note in recorded.notes or () if note.kind == "forget"]
    differing = [step for step in {*mine, *others} if mine.get(step) != others.get(step)]
    if undone.count("rebaselined") != len(replayed.rebaselined) and replayed.rebaselined:
        differing.append(replayed.rebaselined[0])
    if replayed.routine is not None:
        differing.append(replayed.routine.first)
    return min(differing) + 1 if differing else None


def _deeds(records: Sequence[Decision], policy: Policy | None) -> dict[int, Counter[str]]:
    """Return by step what was done to the training."""
    deeds: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for record in records:
        if isinstance(record, Intervention) and not _is_notice(record.remedy):
            deeds[record.step][decided(record, policy).told(has_severity=False)] += 1
    return deeds


def _is_notice(remedy: str) -> bool:
    try:
        return REMEDIES.get(remedy).kind == "notice"
    except KeyError:
        return False
