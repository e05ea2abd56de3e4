"""The policy as data: frozen pydantic models, one per block of the policy file."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_serializer, model_validator

from gradguard.contracts import DIAGNOSES, REMEDIES, Diagnosis, Remedy, Sink
from gradguard.policy.forms import (
    Always,
    AnySink,
    Block,
    Causes,
    Condition,
    Patterns,
    Remedies,
    Verdicts,
    as_list,
    dump_components,
)
from gradguard.records import Severity
from gradguard.registry import Component


class Rung(Block):
    """One step up a rule's ladder: it acts in place of the rung below once all that it asks for holds.

    Args:
        after: the rung below must have acted this often, >= 1,
        within: in so many steps, >= 1; with `if_outcome` alone, how long ago the judged action may lie.
        if_outcome: the last action of the rung below that was judged must have had this verdict, or one of these:
            "no_effect", "worse", "unknown", "helped".
        do: its remedies.
    """

    after: int | None = Field(default=None, ge=1)
    within: int | None = Field(default=None, ge=1)
    if_outcome: Verdicts = ()
    do: Remedies

    @model_validator(mode="after")
    def _check_condition(self) -> Rung:
        if self.after is None and not self.if_outcome:
            raise ValueError("a rung needs `after` and `within`, or `if_outcome`, to say when it acts")
        if self.after is not None and self.within is None:
            raise ValueError("`after` needs `within`: so many actions in how many steps?")
        if self.after is not None and self.within is not None and self.after > self.within:
            raise ValueError(
                f"a rule acts once a step at most, so {self.after} times within {self.within} never happens; "
                f"`within` should be {self.after} or more"
            )
        return self

    @field_serializer("do")
    def _dump_do(self, do: tuple[Remedy, ...]) -> list[dict[str, Any]]:
        return dump_components(do)


def default_name(rule: Any) -> Any:
    """Return the raw mapping of a rule with its diagnosis's name in place of a missing `name`."""
    if not isinstance(rule, dict) or "name" in rule or "when" not in rule:
        return rule
    when = rule["when"]
    label = when if isinstance(when, str) else next(iter(when), "rule") if isinstance(when, dict) else "rule"
    return {**rule, "name": str(label)}


class Rule(Block):
    """Maps one diagnosis to remedies.

    Args:
        name: unique in the policy; a rule of the same name in an extended preset is replaced.
        when: a diagnosis with its options, or "always".
        do: remedies, applied together.
        parameters: patterns on fully qualified names ("!" excludes, the last match decides); the rule looks at, and
            acts on, these only. None means the parameters that are monitored.
        min_severity: findings below it are recorded, not acted on.
        cooldown: steps after an action in which the rule only records, >= 0.
        budget: actions a run, after which the rule only records; None for no limit.
        budget_per_parameter: actions a run on any one parameter, after which the rule leaves that one alone; findings
            that are about the run as a whole do not count. None for no limit.
        until: the last step at which the rule acts, >= 0; later it only records. None for no limit.
        unless_follows: diagnoses; a finding that is a consequence of one of them is only recorded.
        escalate: rungs, lowest first.
    """

    name: str = Field(min_length=1)
    when: Condition
    do: Remedies
    parameters: Patterns | None = None
    min_severity: Severity = "warn"
    cooldown: int = Field(default=0, ge=0)
    budget: int | None = Field(default=None, ge=0)
    budget_per_parameter: int | None = Field(default=None, ge=0)
    until: int | None = Field(default=None, ge=0)
    unless_follows: Causes = ()
    escalate: tuple[Rung, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        return default_name(data)

    @model_validator(mode="after")
    def _check_routine(self) -> Rule:
        if isinstance(self.when, Always):
            for remedy in self.do:
                if not remedy.is_routine:
                    allowed = ", ".join(cls.name for cls in REMEDIES if cls.is_routine)
                    raise ValueError(
                        f"{remedy.name!r} cannot run at every step; with `when: always` use one of: {allowed}"
                    )
            if self.escalate:
                raise ValueError("a rule with `when: always` cannot escalate; give it a diagnosis")
        return self

    @model_validator(mode="after")
    def _check_ladder(self) -> Rule:
        for rung in self.escalate:
            if rung.after is not None and rung.within is not None:
                needed = rung.after * (self.cooldown + 1)
                if needed > rung.within:
                    raise ValueError(
                        f"with `cooldown: {self.cooldown}` the rule cannot act {rung.after} times within {rung.within} "
                        f"steps, so that rung never acts; `within` should be {needed} or more"
                    )
        return self

    @model_validator(mode="after")
    def _check_causes(self) -> Rule:
        possible = self.when.follows if isinstance(self.when, Diagnosis) else ()
        for name in self.unless_follows:
            if name not in possible:
                known = ", ".join(possible) or "nothing"
                raise ValueError(
                    f"{self.when.name!r} never follows {name!r}: `unless_follows` does nothing; it may follow: {known}"
                )
        return self

    @model_validator(mode="after")
    def _check_microbatches(self) -> Rule:
        if isinstance(self.when, Diagnosis) and not self.when.sees_microbatches():
            for remedies in self.ladder():
                for remedy in remedies:
                    if "microbatches" in remedy.needs:
                        theirs = Diagnosis.sees_microbatches
                        seeing = ", ".join(cls.name for cls in DIAGNOSES if cls.sees_microbatches is not theirs)
                        raise ValueError(
                            f"{remedy.name!r} acts on micro-batches, which this condition does not look at; "
                            f"use one of: {seeing}"
                        )
        return self

    @field_serializer("do")
    def _dump_do(self, do: tuple[Remedy, ...]) -> list[dict[str, Any]]:
        return dump_components(do)

    @field_serializer("when")
    def _dump_when(self, when: Component) -> str | dict[str, Any]:
        return "always" if isinstance(when, Always) else when.as_policy()

    def ladder(self) -> tuple[tuple[Remedy, ...], ...]:
        """Return the remedies of every rung, the rule's own `do` first."""
        return (self.do, *(rung.do for rung in self.escalate))


class MonitorOptions(Block):
    """What is measured.

    Args:
        parameters: patterns on fully qualified names; what they leave out is neither judged nor changed.
        probe_every: steps between the sampled measurements (weight norms, finite parameters and buffers, statistics of
            gradients), >= 1.
        statistics: how mean, std, max, min, zero ratio, norm and histogram of every gradient are taken then, when the
            run is recorded: "sampled" (of 8,192 entries a tensor; norm, max and min of all), "exact" (of all; the
            histogram of a large tensor is sampled all the same) or "none".
        updates: what the optimizer changes is looked at "sampled" (at two steps every `probe_every`) or "every_step"
            (which copies up to 4,096 entries a tensor twice a step), where a diagnosis reads it.
        rerun: when a step is not finite, its last batch is run once more through the model, without a trace, to see in
            which module that began: at the first 3 such steps, and later once in 100 steps. False for a model whose
            forward pass must not be repeated.
        sync: "immediate" waits for the device once a step, to judge before the step is taken. "deferred" does not wait:
            thresholds go to the device, which skips or clips by itself, and the host learns one step later.
    """

    parameters: Patterns = ("*",)
    probe_every: int = Field(default=50, ge=1)
    updates: Literal["sampled", "every_step"] = "sampled"
    sync: Literal["immediate", "deferred"] = "immediate"
    statistics: Literal["sampled", "exact", "none"] = "sampled"
    rerun: bool = True


class SnapshotOptions(Block):
    """When and where states are saved for `rollback` and `restart`; nothing is saved unless a rule can go back.

    Args:
        every: steps between snapshots, >= 1; early in a run they are taken more often.
        keep: how many that were verified to be good are kept, >= 1: a rollback that recurs soon goes further back.
        where: "memory" keeps them in host memory, "disk" in the run directory.
        rng: the random generators of torch, numpy and Python are saved and restored as well.
        max_memory_share: no snapshot is kept that would take more than this share of the free memory, in (0, 1].
    """

    every: int = Field(default=200, ge=1)
    keep: int = Field(default=1, ge=1)
    where: Literal["memory", "disk"] = "memory"
    rng: bool = False
    max_memory_share: float = Field(default=0.5, gt=0, le=1)


class Policy(Block):
    """A whole policy: what to measure, what to look for, what to do about it.

    Args:
        version: 1.
        mode: "enforce", or "observe": decide and record, change nothing.
        monitor: what is measured.
        snapshots: when states are saved for rollbacks.
        rules: in order; the order breaks ties.
        budget: actions of all rules that may be spent in vain, None for no limit. One counts until it is judged to
            have helped; notices never do, nor does what could not be judged.
        budget_within: only actions of so many last steps count, >= 1; None for those of the whole run.
        on_budget: when the budget is spent: "stop" ends the training, "record" lets it go on unguarded.
        sinks: who is told of records beside the journal.
        horizon: steps after which an intervention's outcome is judged, >= 1.
        on_internal_error: "continue" (recorded, told once, training goes on) or "raise".
    """

    version: Literal[1] = 1
    mode: Literal["enforce", "observe"] = "enforce"
    monitor: MonitorOptions = MonitorOptions()
    snapshots: SnapshotOptions = SnapshotOptions()
    rules: tuple[Rule, ...] = ()
    budget: int | None = Field(default=None, ge=0)
    budget_within: int | None = Field(default=None, ge=1)
    on_budget: Literal["stop", "record"] = "stop"
    sinks: Annotated[tuple[AnySink, ...], BeforeValidator(as_list)] = Field(default=("console",), validate_default=True)
    horizon: int = Field(default=50, ge=1)
    on_internal_error: Literal["continue", "raise"] = "continue"

    @model_validator(mode="after")
    def _check_budget(self) -> Policy:
        idle = {"budget_within", "on_budget"} & self.model_fields_set
        if self.budget is None and idle and "budget" not in self.model_fields_set:
            raise ValueError(f"{min(idle)!r} does nothing without `budget`: how many actions may be spent in vain?")
        return self

    @model_validator(mode="after")
    def _unique_names(self) -> Policy:
        seen: set[str] = set()
        for rule in self.rules:
            if rule.name in seen:
                raise ValueError(f"two rules are named {rule.name!r}; names must be unique, rename one")
            seen.add(rule.name)
        return self

    @field_serializer("sinks")
    def _dump_sinks(self, sinks: tuple[Sink, ...]) -> list[dict[str, Any]]:
        return dump_components(sinks)

    def needs(self) -> frozenset[str]:
        """Return what the rules' remedies need the guard to keep (see `Remedy.needs`)."""
        remedies = [remedy for rule in self.rules for rung in rule.ladder() for remedy in rung]
        return frozenset().union(*(remedy.needs for remedy in (*remedies, *self.when_spent())))

    def needs_start_until(self) -> float:
        """Return the last step at which a rule may go back to the start; 0 for none, infinite for no limit."""
        going_back = [
            rule for rule in self.rules if any("start" in remedy.needs for rung in rule.ladder() for remedy in rung)
        ]
        return max((math.inf if rule.until is None else rule.until for rule in going_back), default=0)

    def when_spent(self) -> tuple[Remedy, ...]:
        """Return what is done in place of any remedy once the budget of the run is spent."""
        if self.budget is None or self.on_budget == "record":
            return ()
        return (REMEDIES.get("stop")(),)

    def reads(self) -> frozenset[str]:
        """Return what the rules' diagnoses need to have sampled beside the gradients ("activations", "updates")."""
        return frozenset().union(*(rule.when.reads for rule in self.rules if isinstance(rule.when, Diagnosis)))

    def locates(self) -> bool:
        """Return whether a rule's diagnosis asks where NaN came into a step."""
        return any(isinstance(rule.when, Diagnosis) and rule.when.locates for rule in self.rules)


__all__ = ["Policy", "Rule", "Rung", "ValidationError"]
