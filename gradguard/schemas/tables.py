"""The schemas of the exported tables: a row as a JSON object, as `gradguard export --to jsonl` writes it."""

from __future__ import annotations

import re

from gradguard.export.from_records import EVENTS, INTERVENTIONS
from gradguard.export.per_probe import ACTIVATIONS, GRADIENTS, UPDATES
from gradguard.export.per_step import FIXED, NORM, PER_PARAMETER
from gradguard.export.table import Column
from gradguard.schemas.form import NUMBER, JsonSchema, described, document, nullable


COLUMNS: dict[str, tuple[Column, ...]] = {
    "statistics": FIXED,
    "gradients": GRADIENTS,
    "activations": ACTIVATIONS,
    "updates": UPDATES,
    "interventions": INTERVENTIONS,
    "events": EVENTS,
}
TYPES: dict[str, JsonSchema] = {
    "int64": {"type": "integer"},
    "float64": NUMBER,
    "float32": NUMBER,
    "bool": {"type": "boolean"},
    "text": {"type": "string"},
}


def table_schema(name: str) -> JsonSchema:
    """Return the schema of one row of a table; `statistics` has a further column for each parameter."""
    body: JsonSchema = {
        "type": "object",
        "properties": {column.name: _column(column) for column in COLUMNS[name]},
        "required": [column.name for column in COLUMNS[name]],
        "additionalProperties": False,
    }
    if name == "statistics":
        body["patternProperties"] = {f"^{re.escape(NORM)}": _column(PER_PARAMETER)}
    return document(name, f"A row of the exported table {name}.", body)


def _column(column: Column) -> JsonSchema:
    schema = nullable(TYPES[column.kind]) if column.is_optional else TYPES[column.kind]
    return described(schema, f"{column.what} ({column.kind})")
