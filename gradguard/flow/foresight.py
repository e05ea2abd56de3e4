"""What a policy will do at the step to come, told before anything is measured: thresholds that a device can apply.

policy + state after the last step --plan--> Plan (skip above, clip above) --DeviceVerdict--> found_inf, grad_scale
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradguard.contracts import Diagnosis, Remedy
from gradguard.evidence.stats import StepStats
from gradguard.evidence.trigger import Trigger
from gradguard.flow.judgement import Judgement
from gradguard.policy.decide import budget_left, choose_rung, reason_to_wait
from gradguard.policy.history import RuleHistory
from gradguard.policy.schema import Policy, Rule


@dataclass
class Plan:
    """What the device is to do at one step.

    Args:
        skips: the step is skipped when one of these fires.
        clips: in the order in which they are applied; each is a list of (trigger, or None for always; limit of the
            global norm), of which the first that fires holds.
    """

    skips: list[Trigger] = field(default_factory=list)
    clips: list[list[tuple[Trigger | None, float]]] = field(default_factory=list)


class Foresight:
    """Plans the device's part of each step.

    Args:
        policy: its rules.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rules = policy.rules if policy.mode == "enforce" else ()

    def needs_device(self) -> bool:
        """Return whether the device has a part in any step, so that the optimizer must be a fused one."""
        remedies = [remedy for rule in self._rules for rung in rule.ladder() for remedy in rung]
        remedies += self._policy.when_spent() if remedies else ()
        return any(remedy.timing != "late" or remedy.kind == "verdict" for remedy in remedies)

    def reasons_to_wait(self, stats: StepStats) -> list[str]:
        """Return why the host must answer before each step, one reason for each rule that asks for it."""
        return [f"rule {rule.name!r} {reason}" for rule in self._rules if (reason := _reason(rule, stats))]

    def plan(self, judgement: Judgement, histories: Mapping[str, RuleHistory], stats: StepStats) -> Plan:
        """Return the device's part of the step to come.

        Args:
            judgement: after the last step.
            histories: of the rules, after the last step.
            stats: `step`, `lr` and what was sampled are those of the step to come.
        """
        plan = Plan()
        triggers = judgement.triggers(stats)
        left = budget_left(self._policy, histories, stats.step)
        for rule in self._rules:
            if not (fired := triggers.get(rule.name)):
                continue
            history = histories.get(rule.name, RuleHistory())
            if reason_to_wait(rule, "warn", history, stats.step) is not None:
                continue
            remedies = rule.ladder()[choose_rung(rule, history, stats.step)]
            if left is not None and left <= 0 and any(remedy.kind != "notice" for remedy in remedies):
                remedies = self._policy.when_spent()
            if any(remedy.kind == "verdict" for remedy in remedies):
                plan.skips += fired
            limits = [[(t, limit) for limit in _limits(remedies, stats, t.has_baseline)] for t in fired]
            plan.clips += [list(alternatives) for alternatives in zip(*limits, strict=True)]
        for rule in self._rules:
            if not isinstance(rule.when, Diagnosis):
                plan.clips += [[(None, limit)] for limit in _limits(rule.do, stats, True)]
        return plan


def _limits(remedies: Sequence[Remedy], stats: StepStats, has_baseline: bool) -> list[float]:
    limits = [remedy.device_limit(stats, has_baseline) for remedy in remedies]
    return [limit for limit in limits if limit is not None]


def _reason(rule: Rule, stats: StepStats) -> str:
    remedies = [remedy for rung in rule.ladder() for remedy in rung]
    urgent = [remedy for remedy in remedies if remedy.timing != "late"]
    if not urgent:
        return ""
    beyond = [r for r in urgent if r.timing == "now" and r.device_limit(stats, True) is None]
    if beyond:
        return f"uses {beyond[0].name!r}, which must see the gradients"
    if rule.unless_follows:
        return f"asks what a finding follows, and uses {urgent[0].name!r}"
    if rule.budget_per_parameter is not None:
        return f"has a budget for each parameter, and uses {urgent[0].name!r}"
    if rule.parameters is not None:
        return f"acts on some parameters only with {urgent[0].name!r}"
    if isinstance(rule.when, Diagnosis) and not rule.when.is_foreseeable:
        return f"uses {urgent[0].name!r} on {rule.when.name!r}, which cannot be told before the step"
    if isinstance(rule.when, Diagnosis) and rule.min_severity == "critical":
        return f"uses {urgent[0].name!r} from severity 'critical' on, which cannot be told before the step"
    return ""
