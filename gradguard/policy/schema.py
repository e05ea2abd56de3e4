"""The policy as data: frozen pydantic models, one per block of the policy file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_serializer,
    model_validator,
)

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS, Diagnosis, Remedy, Sink
from gradguard.records import Severity
from gradguard.registry import Component, Registry


class Block(BaseModel):
    """A block of the policy file: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Always(Component):
    """The condition of a rule that applies at every step, such as a fixed gradient clip."""

    name = "always"


def resolve(registry: Registry[Any], value: Any) -> Any:
    """Turn the forms that a policy file may use into a component.

    Accepts a component, `name`, `{name: {option: value}}` and `{name: null}`.

    Raises:
        ValueError: the name is unknown (with "did you mean") or the form is another.
    """
    if isinstance(value, Component):
        return value
    options: Any
    if isinstance(value, str):
        name, options = value, None
    elif isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value)), str):
        name, options = next(iter(value.items()))
    else:
        raise ValueError(f"expected the name of a {registry.family}, or {{name: {{option: value}}}}, got {value!r}")
    try:
        cls = registry.get(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    options = {} if options is None else options
    if not isinstance(options, dict):
        raise ValueError(f"options of {name!r} must be a mapping {{option: value}}, got {options!r}")
    return cls.model_validate(options)


def _resolve_condition(value: Any) -> Any:
    if isinstance(value, Always) or value in ("always", {"always": None}, {"always": {}}):
        return Always()
    return resolve(DIAGNOSES, value)


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _resolver(registry: Registry[Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: resolve(registry, value))


AnyRemedy = Annotated[SerializeAsAny[Remedy], _resolver(REMEDIES)]
AnySink = Annotated[SerializeAsAny[Sink], _resolver(SINKS)]
Condition = Annotated[SerializeAsAny[Component], BeforeValidator(_resolve_condition)]
Remedies = Annotated[tuple[AnyRemedy, ...], BeforeValidator(_as_list), Field(min_length=1)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]


def _dump_components(components: Iterable[Component]) -> list[dict[str, Any]]:
    return [component.as_policy() for component in components]


class Rung(Block):
    """One step up a rule's ladder.

    Args:
        after: the rung below must have acted this often, >= 1,
        within: in so many steps, >= 1; then this rung acts in its place.
        do: its remedies.
    """

    after: int = Field(ge=1)
    within: int = Field(ge=1)
    do: Remedies

    @field_serializer("do")
    def _dump_do(self, do: tuple[Remedy, ...]) -> list[dict[str, Any]]:
        return _dump_components(do)


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
        escalate: rungs, lowest first.
    """

    name: str = Field(min_length=1)
    when: Condition
    do: Remedies
    parameters: Patterns | None = None
    min_severity: Severity = "warn"
    cooldown: int = Field(default=0, ge=0)
    budget: int | None = Field(default=None, ge=0)
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

    @field_serializer("do")
    def _dump_do(self, do: tuple[Remedy, ...]) -> list[dict[str, Any]]:
        return _dump_components(do)

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
        sync: "immediate" waits for the device once a step, to judge before the step is taken. "deferred" does not wait:
            thresholds go to the device, which skips or clips by itself, and the host learns one step later.
    """

    parameters: Patterns = ("*",)
    probe_every: int = Field(default=50, ge=1)
    updates: Literal["sampled", "every_step"] = "sampled"
    sync: Literal["immediate", "deferred"] = "immediate"
    statistics: Literal["sampled", "exact", "none"] = "sampled"


class SnapshotOptions(Block):
    """When states are saved for `rollback`; nothing is saved unless a rule can roll back.

    Args:
        every: steps between snapshots, >= 1; early in a run they are taken more often.
        max_memory_share: no snapshot is kept that would take more than this share of the free memory, in (0, 1].
    """

    every: int = Field(default=200, ge=1)
    max_memory_share: float = Field(default=0.5, gt=0, le=1)


class Policy(Block):
    """A whole policy: what to measure, what to look for, what to do about it.

    Args:
        version: 1.
        mode: "enforce", or "observe": decide and record, change nothing.
        monitor: what is measured.
        snapshots: when states are saved for rollbacks.
        rules: in order; the order breaks ties.
        sinks: who is told of records beside the journal.
        horizon: steps after which an intervention's outcome is judged, >= 1.
        on_internal_error: "continue" (recorded, told once, training goes on) or "raise".
    """

    version: Literal[1] = 1
    mode: Literal["enforce", "observe"] = "enforce"
    monitor: MonitorOptions = MonitorOptions()
    snapshots: SnapshotOptions = SnapshotOptions()
    rules: tuple[Rule, ...] = ()
    sinks: Annotated[tuple[AnySink, ...], BeforeValidator(_as_list)] = Field(
        default=("console",), validate_default=True
    )
    horizon: int = Field(default=50, ge=1)
    on_internal_error: Literal["continue", "raise"] = "continue"

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
        return _dump_components(sinks)

    def needs(self) -> frozenset[str]:
        """Return what the rules' remedies need the guard to keep (see `Remedy.needs`)."""
        return frozenset().union(
            *(remedy.needs for rule in self.rules for remedies in rule.ladder() for remedy in remedies)
        )

    def reads(self) -> frozenset[str]:
        """Return what the rules' diagnoses need to have sampled beside the gradients ("activations", "updates")."""
        return frozenset().union(*(rule.when.reads for rule in self.rules if isinstance(rule.when, Diagnosis)))


__all__ = ["Always", "Policy", "Rule", "Rung", "ValidationError"]
