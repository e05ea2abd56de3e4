"""The schema of a line of `interventions.jsonl`, from the classes that the reader checks it with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter

from gradguard.policy.options import argument_meanings
from gradguard.records import AnyRecord, Cause, Change, Event, Finding, Intervention, Outcome, Record, Withheld
from gradguard.schemas.form import NUMBER, SEALS, WORDS, JsonSchema, document


KINDS: tuple[type[BaseModel], ...] = (Intervention, Withheld, Outcome, Event)
PARTS: tuple[type[BaseModel], ...] = (Cause, Change, Finding)
ALWAYS = (
    "v",
    "seq",
    "time",
    "step",
    "kind",
    "prev",
    "hash",
)  # fields that every line has had from the first version on


def record_schema() -> JsonSchema:
    """Return the schema of one line of the journal.

    Fields that came later within a version are not required, so lines from before are valid. What was written from the
    finding's `indices` and the intervention's `outcome` is nothing: both live in memory only.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(AnyRecord)
    definitions = adapter.json_schema(mode="validation")["$defs"]
    for model in (*KINDS, *PARTS):
        definition = definitions[model.__name__]
        meanings = {**argument_meanings(Record), **argument_meanings(Intervention), **argument_meanings(model)}
        for name, schema in definition["properties"].items():
            schema.pop("title", None)
            schema.setdefault("description", meanings.get(name, ""))
        if "kind" in definition["properties"]:
            definition["properties"]["kind"]["description"] = "What the line is."
        definition["description"] = (model.__doc__ or "").partition("\n")[0]
        definition["additionalProperties"] = False
    for model in KINDS:
        definition = definitions[model.__name__]
        definition["properties"].pop("outcome", None)
        definition["properties"] |= SEALS
        definition["required"] = list(dict.fromkeys([*ALWAYS, *definition.get("required", [])]))
    definitions["Finding"]["properties"].pop("indices", None)
    kinds = [{"$ref": f"#/$defs/{model.__name__}"} for model in KINDS]
    body = _with_words({"oneOf": kinds, "$defs": dict(sorted(definitions.items()))})
    return document("record", "A line of interventions.jsonl. NaN and infinity are written as strings.", body)


def _with_words(schema: Any) -> Any:
    """Return the schema with the strings "NaN", "Infinity" and "-Infinity" wherever a number may be."""
    if isinstance(schema, list):
        items = [_with_words(item) for item in schema]
        return [*items, WORDS] if {"type": "number"} in items else items
    if isinstance(schema, dict):
        if schema == {"type": "number"}:
            return schema
        if schema.get("type") == "number":
            return {**{key: value for key, value in schema.items() if key != "type"}, **NUMBER}
        return {key: _with_words(value) for key, value in schema.items()}
    return schema
