"""The forms that a policy file may use: components by name, lists or single values, and what holds for every block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS, Remedy, Sink
from gradguard.records import Verdict
from gradguard.registry import Component, Options, Registry


class Block(Options):
    """A block of the policy file."""


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


def as_list(value: Any) -> Any:
    """Return a list of what is one, and a list of one of anything else."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _resolver(registry: Registry[Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: resolve(registry, value))


def _refuse_twins(remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    for place, remedy in enumerate(remedies):
        if remedy in remedies[:place]:
            raise ValueError(f"{remedy.name!r} is there twice with the same options; once is enough")
    return remedies


AnyRemedy = Annotated[SerializeAsAny[Remedy], _resolver(REMEDIES)]
AnySink = Annotated[SerializeAsAny[Sink], _resolver(SINKS)]
Condition = Annotated[SerializeAsAny[Component], BeforeValidator(_resolve_condition)]
Remedies = Annotated[
    tuple[AnyRemedy, ...], BeforeValidator(as_list), Field(min_length=1), AfterValidator(_refuse_twins)
]
Patterns = Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)]
Causes = Annotated[tuple[str, ...], BeforeValidator(as_list)]
Verdicts = Annotated[tuple[Verdict, ...], BeforeValidator(as_list)]


def dump_components(components: Iterable[Component]) -> list[dict[str, Any]]:
    """Return components as a policy file names them."""
    return [component.as_policy() for component in components]
