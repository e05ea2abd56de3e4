"""The options of a component or a block, in words: read off its fields and the Args section of its docstring."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import to_jsonable_python


class Option(NamedTuple):
    """One option.

    Args:
        name: its key in a policy file.
        type: what it may be, such as "number > 0".
        default: as a policy file would write it; None when it has to be given.
        meaning: what it does.
    """

    name: str
    type: str
    default: str | None
    meaning: str


def options(cls: type[BaseModel]) -> list[Option]:
    """Return the options of a component, those that have to be given first.

    Example:
        >>> from gradguard.policy.schema import SnapshotOptions
        >>> [(option.name, option.type, option.default) for option in options(SnapshotOptions)][:2]
        [('every', 'integer >= 1', '200'), ('keep', 'integer >= 1', '1')]
    """
    schema = cls.model_json_schema()
    meanings = argument_meanings(cls)
    found = []
    for name, field in cls.model_fields.items():
        default = None if field.is_required() else json.dumps(to_jsonable_python(field.get_default()))
        kind = _describe_type(schema["properties"][name], schema.get("$defs", {}))
        found.append(Option(name, kind, default, field.description or meanings.get(name, "")))
    return sorted(found, key=lambda option: option.default is not None)


def argument_meanings(cls: type) -> dict[str, str]:
    """Return what the Args section of a class's docstring says about each argument."""
    _, _, section = inspect.getdoc(cls).partition("Args:\n") if cls.__doc__ else ("", "", "")  # type: ignore[union-attr]
    section = re.split(r"\n(?=\S)", section)[0]
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def _describe_type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if members := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(_describe_type(member, definitions) for member in members)
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "anything")
    if kind == "object" and "properties" in schema:
        keys = (f"{name}: {_describe_type(inner, definitions)}" for name, inner in schema["properties"].items())
        return f"{{{', '.join(keys)}}}"
    if kind == "array":
        return f"list of {_describe_type(schema.get('items', {}), definitions)}"
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = ", ".join(f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema)
    words = {"string": "text", "boolean": "true | false", "object": "mapping"}
    return f"{words.get(kind, kind)} {bounds}".strip()
