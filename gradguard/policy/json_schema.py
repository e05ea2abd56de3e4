"""The JSON Schema of the policy file, from which editors complete and check it while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS
from gradguard.policy.forms import Always
from gradguard.policy.load import preset_names
from gradguard.policy.options import argument_meanings
from gradguard.policy.schema import MonitorOptions, Policy, Rule, Rung, SnapshotOptions
from gradguard.registry import Component, Registry


JsonSchema = dict[str, Any]


def policy_json_schema() -> JsonSchema:
    """Return the JSON Schema (2020-12) of a policy file, with every registered component and its options."""
    schema = Policy.model_json_schema()
    definitions: JsonSchema = {
        name: schema["$defs"][name] for name in ("MonitorOptions", "Rule", "Rung", "SnapshotOptions")
    }
    for model in (MonitorOptions, Rule, Rung, SnapshotOptions):
        _describe(definitions[model.__name__], model)
    _describe(schema, Policy)
    for registry, key in ((DIAGNOSES, "diagnosis"), (REMEDIES, "remedy"), (SINKS, "sink")):
        definitions[key] = _any_of(registry, definitions)
    text = {"type": "string", "minLength": 1}
    patterns = _one_or_many(text)

    always = {"const": Always.name, "description": "At every step."}
    remedies = _one_or_many({"$ref": "#/$defs/remedy"})
    rule = definitions["Rule"]
    rule["required"] = ["when", "do"]
    _replace(rule, "when", {"anyOf": [always, {"$ref": "#/$defs/diagnosis"}]})
    _replace(rule, "do", remedies)
    _replace(rule, "parameters", {"anyOf": [*patterns["anyOf"], {"type": "null"}]})
    _replace(rule, "unless_follows", _one_or_many(text, min_items=0))
    _replace(definitions["Rung"], "do", remedies)
    _replace(definitions["MonitorOptions"], "parameters", patterns)
    _replace(schema, "sinks", _one_or_many({"$ref": "#/$defs/sink"}, min_items=0))
    schema["properties"]["extends"] = {
        "description": "A preset, or the path of a policy relative to this file, whose keys and rules are taken over.",
        "anyOf": [{"enum": preset_names()}, text],
    }
    schema["properties"]["remove"] = {"description": "Names of inherited rules to drop.", **_one_or_many(text)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "gradguard policy",
        "$defs": definitions,
    }


def _describe(schema: JsonSchema, model: type[BaseModel]) -> None:
    """Put the words of the model's docstring where an editor shows them: beside each key."""
    schema["description"] = (model.__doc__ or "").partition("\n")[0]
    for name, meaning in argument_meanings(model).items():
        schema["properties"].get(name, {}).setdefault("description", meaning)


def _replace(schema: JsonSchema, key: str, value: JsonSchema) -> None:
    kept = {name: old for name, old in schema["properties"][key].items() if name in ("default", "description")}
    schema["properties"][key] = {**kept, **value}


def _one_or_many(item: JsonSchema, min_items: int = 1) -> JsonSchema:
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": min_items}]}


def _any_of(registry: Registry[Any], definitions: JsonSchema) -> JsonSchema:
    """Return the schema of "a member of the family": its name, or `{name: {option: value}}`."""
    names = [{"const": cls.name, "description": cls.what} for cls in registry if not _required(cls)]
    with_options = {
        "type": "object",
        "properties": dict(_named_options(registry, definitions)),
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    return {"anyOf": [*names, with_options]}


def _named_options(registry: Registry[Any], definitions: JsonSchema) -> Iterator[tuple[str, JsonSchema]]:
    for cls in registry:
        # Components may call their nested models alike; under the component's name they stay apart.
        own = cls.model_json_schema(ref_template=f"#/$defs/{cls.name}.{{model}}")
        for name, definition in own.pop("$defs", {}).items():
            definitions[f"{cls.name}.{name}"] = definition
        _describe(own, cls)
        own["description"] = cls.what
        yield cls.name, own if _required(cls) else {"anyOf": [own, {"type": "null"}], "description": cls.what}


def _required(cls: type[Component]) -> list[str]:
    return [name for name, field in cls.model_fields.items() if field.is_required()]
