"""The rules for every step, such as a limit on the gradient norm, on paper: what they would have done, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradguard.contracts import Remedy, Unavailable
from gradguard.limits.norm_sets import Rows
from gradguard.policy.forms import Always
from gradguard.policy.schema import Policy, Rule
from gradguard.record.encode import to_json
from gradguard.replay.paper import OffPaper, PaperTarget


Deed = tuple[str, ...]  # what each remedy that did something left behind


@dataclass(frozen=True)
class RoutineDifference:
    """Steps at which the rules for every step would have left other gradients.

    Args:
        num_steps: at which they differ.
        first: step.
        num_recorded: steps at which those of the run did something.
        num_replayed: steps at which those of the policy would have.
        num_judged: steps that there were for both.
        is_clipping: all that they do is to clip.
        assumed: remedies that are taken to act at every step, as what they work on is not recorded.
    """

    num_steps: int
    first: int
    num_recorded: int
    num_replayed: int
    num_judged: int
    is_clipping: bool
    assumed: tuple[str, ...] = ()


class PaperRoutine:
    """Applies the rules with `when: always` to the norms of a step.

    Args:
        policy: its rules; none act in mode "observe".

    Attributes:
        rules: that act at every step.
        deeds: {step: what was done}, for steps at which something was.
        num_steps: at which they were asked.
        assumed: remedies whose work no record holds.
    """

    def __init__(self, policy: Policy) -> None:
        self.rules = routine_rules(policy)
        self.deeds: dict[int, Deed] = {}
        self.num_steps = 0
        self.assumed: set[str] = set()

    def apply(self, target: PaperTarget, rows_of: Mapping[str, Rows]) -> None:
        """Apply the rules one by one and note the norms that they leave."""
        self.num_steps += 1
        done = [
            told for rule in self.rules for remedy in rule.do if (told := self._told(target, rule, remedy, rows_of))
        ]
        if done:
            self.deeds[target.stats.step] = tuple(done)
        else:
            self.deeds.pop(target.stats.step, None)  # a step that was taken again

    def _told(self, target: PaperTarget, rule: Rule, remedy: Remedy, rows_of: Mapping[str, Rows]) -> str:
        try:
            change = remedy.apply(target, None, rows_of[rule.name])  # type: ignore[arg-type]
        except Unavailable:
            return ""
        except (OffPaper, TypeError, ImportError):
            self.assumed.add(remedy.name)
            return f"{remedy.name} {to_json(remedy.as_policy())} {rule.parameters}"
        return "" if change is None else f"{remedy.name} {to_json(change.after)}"


def routine_rules(policy: Policy) -> Sequence[Rule]:
    """Return the rules that act at every step."""
    return [rule for rule in policy.rules if isinstance(rule.when, Always)] if policy.mode == "enforce" else []


def is_same_routine(policy: Policy, other: Policy) -> bool:
    """Return whether the rules for every step are alike, whatever they are called."""
    mine, others = ([(rule.parameters, rule.do) for rule in routine_rules(one)] for one in (policy, other))
    return mine == others


def compare_routines(run: PaperRoutine, policy: PaperRoutine) -> RoutineDifference | None:
    """Return where the rules for every step differ in what they do; None where they do the same."""
    differing = [step for step in {*run.deeds, *policy.deeds} if run.deeds.get(step) != policy.deeds.get(step)]
    if not differing:
        return None
    remedies = [remedy.name for one in (run, policy) for rule in one.rules for remedy in rule.do]
    return RoutineDifference(
        num_steps=len(differing),
        first=min(differing),
        num_recorded=len(run.deeds),
        num_replayed=len(policy.deeds),
        num_judged=policy.num_steps,
        is_clipping=all(name.startswith("clip_") for name in remedies),
        assumed=tuple(sorted(run.assumed | policy.assumed)),
    )
