"""The schema of a line of `probes.jsonl`, from the classes that it is written from."""

from __future__ import annotations

import dataclasses
import re

from gradguard.evidence.probe_stats import Activations, InputStats, OutputStats, Updates
from gradguard.policy.options import argument_meanings
from gradguard.schemas.form import COUNT, NUMBER, SEALS, JsonSchema, described, document, list_of, nullable


TEXT: JsonSchema = {"type": "string"}
BY_TYPE: dict[str, JsonSchema] = {
    "int": COUNT,
    "float": NUMBER,
    "str": TEXT,
    "FloatArray": list_of(NUMBER),
    "npt.NDArray[np.int64]": list_of(COUNT),
    "tuple[str, ...]": list_of(TEXT),
    "tuple[int, ...]": list_of(COUNT),
    "tuple[npt.NDArray[np.int64], ...]": list_of(list_of(COUNT)),
    "dict[str, float]": {"type": "object", "additionalProperties": NUMBER},
    "OutputStats | None": nullable({"$ref": "#/$defs/OutputStats"}),
    "tuple[InputStats, ...]": list_of({"$ref": "#/$defs/InputStats"}),
}
AT: JsonSchema = described(COUNT, "Step whose diagnoses were told.")


def probes_schema() -> JsonSchema:
    """Return the schema of what one probe saw; fields that came later are not required."""
    kinds = []
    for kind, cls in (("activations", Activations), ("updates", Updates)):
        own = _fields(cls)
        own["properties"] = {"at": AT, "kind": {"const": kind, "description": "What was probed."}, **own["properties"]}
        own["properties"] |= SEALS
        own["required"] = ["at", "kind", *own["required"]]
        kinds.append(own)
    parts = {cls.__name__: _fields(cls) for cls in (InputStats, OutputStats)}
    body = {"oneOf": kinds, "$defs": parts}
    return document("probes", "A line of probes.jsonl: what a probe of activations or updates saw.", body)


def _fields(cls: type) -> JsonSchema:
    meanings = argument_meanings(cls)
    fields = dataclasses.fields(cls)
    return {
        "type": "object",
        "description": re.sub(r"\s+", " ", (cls.__doc__ or "").partition("\n")[0]),
        "properties": {
            field.name: described(BY_TYPE[str(field.type)], meanings.get(field.name, "")) for field in fields
        },
        "required": [field.name for field in fields if field.default is dataclasses.MISSING],
        "additionalProperties": False,
    }
