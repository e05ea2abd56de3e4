"""The frame of every schema, and how numbers are written where JSON has no word for them."""

from __future__ import annotations

from typing import Any


JsonSchema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
WORDS = {"enum": ["NaN", "Infinity", "-Infinity"]}  # numbers that JSON has no word for
NUMBER: JsonSchema = {"anyOf": [{"type": "number"}, WORDS]}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
TIME: JsonSchema = {"type": "string"}
SHA256: JsonSchema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
# Of a line in a chained file.
SEALS: dict[str, JsonSchema] = {
    "prev": {"description": "`hash` of the line before; of the first line a hash of the run's id.", **SHA256},
    "hash": {"description": "sha256 of `prev` and the JSON text of the line without `prev` and `hash`.", **SHA256},
}


def schema_id(name: str, version: int = 1) -> str:
    """Return the identifier of a schema, with its version.

    Example:
        >>> schema_id("record")
        'urn:gradguard:record:1'
    """
    return f"urn:gradguard:{name}:{version}"


def document(name: str, description: str, body: JsonSchema, version: int = 1) -> JsonSchema:
    """Return a schema with its dialect, identifier and title."""
    head = {"$schema": DIALECT, "$id": schema_id(name, version), "title": f"gradguard {name}, version {version}"}
    return {**head, "description": description, **body}


def nullable(schema: JsonSchema) -> JsonSchema:
    """Return a schema that also takes null."""
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


def list_of(item: JsonSchema) -> JsonSchema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def described(schema: JsonSchema, description: str) -> JsonSchema:
    """Return a schema with a description."""
    return {"description": description, **schema}
