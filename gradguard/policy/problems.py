"""What pydantic found wrong with a policy, said in the words of the file and at its place there."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS
from gradguard.errors import did_you_mean
from gradguard.policy.locate import Node, Place, Problem
from gradguard.policy.schema import Policy
from gradguard.registry import Component, Registry


# Keys of a file that are used up while it is loaded, so no field of `Policy` has their name.
LOADING_KEYS = ("extends", "remove")

FAMILIES: dict[str, Registry[Any]] = {"when": DIAGNOSES, "do": REMEDIES, "sinks": SINKS}
SHAPES = {
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "text",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


class _Spot(NamedTuple):
    """Where the location of a pydantic error leads in the file.

    Args:
        node: the value there, or the nearest one around it.
        models: what pydantic may have expected there.
        label: the last key on the way.
        union: the value on the way that was tried as each member of a union, or None.
        is_inside: the error is about something within that value, not about the value as a whole.
    """

    node: Node
    models: frozenset[type[BaseModel]]
    label: str
    union: Node | None
    is_inside: bool


def find_problems(error: ValidationError, root: Node) -> list[Problem]:
    """Return one problem for every mistake that pydantic found.

    Args:
        error: raised by `Policy.model_validate(root.plain())`.
        root: the tree that was validated.
    """
    problems: list[Problem] = []
    unions: dict[int, list[tuple[_Spot, ErrorDetails]]] = {}
    for detail in error.errors(include_url=False):
        spot = _follow(root, detail["loc"], detail["type"] in ("missing", "extra_forbidden"))
        if spot.union is None:
            problems.append(_describe(spot, detail))
        else:
            unions.setdefault(id(spot.union), []).append((spot, detail))
    for members in unions.values():
        problems.extend(_describe_union(members))
    return problems


def _describe(spot: _Spot, detail: ErrorDetails) -> Problem:
    kind, node = detail["type"], spot.node
    if kind == "extra_forbidden":
        key = str(detail["loc"][-1])
        known = {name for model in spot.models for name in model.model_fields}
        known |= set(LOADING_KEYS) if Policy in spot.models else set()
        noun = "option" if any(issubclass(model, Component) for model in spot.models) else "key"
        return Problem(node.value[key].key_place, f"unknown {noun} {key!r}{did_you_mean(key, known)}")
    if kind == "missing":
        return Problem(node.place, f"{detail['loc'][-1]!r} is missing")
    if kind == "value_error":
        return Problem(_place_of_name(spot), str(detail["ctx"]["error"]))
    got = _show(node.plain())
    if spot.label == "version":
        return Problem(
            node.place, f"version {got} is not known; known: {', '.join(re.findall('[0-9]+', detail['msg']))}"
        )
    return Problem(node.place, f"{spot.label!r} {_expectation(detail, spot.models)}, got {got}")


def _describe_union(members: Sequence[tuple[_Spot, ErrorDetails]]) -> list[Problem]:
    """Say one thing about a value that fits no member of a union, instead of one for each member."""
    inside = [(spot, detail) for spot, detail in members if spot.is_inside]
    if inside:
        return [_describe(spot, detail) for spot, detail in inside]
    spot, _ = members[0]
    expectations = dict.fromkeys(_expectation(detail, spot.models) for spot, detail in members)
    joined = " or ".join(expectations).replace(" or should be ", " or ")
    return [Problem(spot.node.place, f"{spot.label!r} {joined}, got {_show(spot.node.plain())}")]


def _expectation(detail: ErrorDetails, models: frozenset[type[BaseModel]]) -> str:
    """Return what was expected, as a clause that begins with "should"."""
    for model in models:
        if detail["type"] == "model_type" and model.__name__ == detail["ctx"]["class_name"]:
            required = [name for name, field in model.model_fields.items() if field.is_required()]
            return f"should be a mapping {{{', '.join(f'{name}: ...' for name in required)}}}"
    if detail["type"] in SHAPES:
        return f"should be {SHAPES[detail['type']]}"
    if detail["type"] == "too_short":
        return "should have at least one item"
    clause = re.sub(r"^\w+ (?=should)", "", detail["msg"])
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        near = did_you_mean(detail["input"], re.findall(r"'([^']*)'", clause))
        return clause + (f" ({near[2:]})" if near.endswith("?") else "")
    return clause


def _show(value: Any) -> str:
    """Return a value as a policy file would write it, shortened."""
    text = json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _place_of_name(spot: _Spot) -> Place:
    """Return the place of the name in `{name: {option: value}}` when the name could not be resolved."""
    node = spot.node
    if any(map(_is_open, spot.models)) and isinstance(node.value, dict) and len(node.value) == 1:
        child: Node = next(iter(node.value.values()))
        return child.key_place
    return node.place


def _follow(root: Node, location: Sequence[int | str], is_about_key: bool) -> _Spot:
    """Walk the location of an error; `is_about_key` when its last part is a key that is missing or too many."""
    node, models, label = root, frozenset[type[BaseModel]]([Policy]), "policy"
    union: Node | None = None
    is_inside = False
    for part in location[:-1] if is_about_key else location:
        node, models = _enter_component(node, models, label)
        is_inside = union is not None
        if isinstance(part, int):
            # A lone value may stand for a list of one; it is then its own item 0.
            if isinstance(node.value, list):
                node, label = node.value[part], f"{label}[{part}]"
        elif isinstance(node.value, dict) and part in node.value:
            fields = [model.model_fields[part] for model in models if part in model.model_fields]
            node, label = node.value[part], part
            models = frozenset().union(*(_models_of(field.annotation) for field in fields))
        else:
            union = union or node
            models = frozenset(model for model in models if model.__name__ == part) or models
    node, models = _enter_component(node, models, label)
    return _Spot(node, models, label, union, is_inside or (is_about_key and union is not None))


def _enter_component(
    node: Node, models: frozenset[type[BaseModel]], label: str
) -> tuple[Node, frozenset[type[BaseModel]]]:
    """Step from `{name: options}` to the options and the component's class; else stay."""
    registry = FAMILIES.get(label.partition("[")[0])
    if registry is None or not any(map(_is_open, models)) or not isinstance(node.value, dict) or len(node.value) != 1:
        return node, models
    ((name, options),) = node.value.items()
    return (options, frozenset([registry.get(name)])) if name in registry.names() else (node, models)


def _is_open(model: type[BaseModel]) -> bool:
    """Return whether the model is the base of a family, of which the file has to name a member."""
    return issubclass(model, Component) and not model.name


def _models_of(annotation: Any) -> frozenset[type[BaseModel]]:
    """Return the models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return frozenset([annotation])
    return frozenset().union(*(_models_of(inner) for inner in typing.get_args(annotation)))
