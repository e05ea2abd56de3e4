"""The schema of a line of `seals.jsonl`, from the class that the reader checks it with."""

from __future__ import annotations

from pydantic import BaseModel

from gradguard.policy.options import argument_meanings
from gradguard.record.chain import SealedLines
from gradguard.record.seals import Seal, SealedRows
from gradguard.schemas.form import COUNT, SEALS, SHA256, JsonSchema, document


def seals_schema() -> JsonSchema:
    """Return the schema of one seal."""
    parts = {model.__name__: _object(model) for model in (SealedLines, SealedRows)}
    body = _object(Seal)
    body["properties"] |= SEALS
    body["required"] += SEALS
    return document("seals", "A line of seals.jsonl: what was on the disk at one moment.", {**body, "$defs": parts})


def _object(model: type[BaseModel]) -> JsonSchema:
    schema = model.model_json_schema(mode="serialization")
    meanings = argument_meanings(model)
    properties = {}
    for name, field in schema["properties"].items():
        kept = {key: value for key, value in field.items() if key not in ("title", "default")}
        if name in ("hash", "sha256", "info"):
            kept = dict(SHA256)
        elif name == "v":
            kept = {"const": 1}
        elif kept == {"type": "integer"}:
            kept = dict(COUNT)
        properties[name] = {"description": meanings[name], **kept}
    description = (model.__doc__ or "").partition("\n")[0]
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
