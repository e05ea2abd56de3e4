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
    "FloatArray": {"$ref": "#/$defs/Numbers"},
    "npt.NDArray[np.int64]": list_of(COUNT),
    "tuple[str, ...]": list_of(TEXT),
    "tuple[int, ...]": list_of(COUNT),
    "tuple[npt.NDArray[np.int64], ...]": list_of(list_of(COUNT)),
    "dict[str, float]": {"type": "object", "additionalProperties": NUMBER},
    "OutputStats | None": nullable({"$ref": "#/$defs/OutputStats"}),
    "tuple[InputStats, ...]": list_of({"$ref": "#/$defs/InputStats"}),
}
AT: JsonSchema = described(COUNT, "Step whose diagnoses were told.")
LIKE: JsonSchema = described(COUNT, "Line of the same file, from 1: what is left out here is as it is there.")
FIRST_AT: JsonSchema = described(COUNT, "The same in the first records, which have no `at`.")
NOTE: JsonSchema = described(COUNT, "Line of replay.jsonl, from 1, that has them.")
NUMBERS: JsonSchema = {
    "description": "Numbers of float32, in one of three forms.",
    "oneOf": [
        list_of(NUMBER),
        {
            "type": "object",
            "properties": {
                "f4": described(TEXT, "base64 of their bytes, little endian."),
                "f4z": described(TEXT, "base64 of a zlib stream of their first bytes, their second ones, ..."),
            },
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
        },
    ],
}


def probes_schema() -> JsonSchema:
    """Return the schema of what one probe saw; fields that came later are not required.

    Lines of version 1 are valid too, and those of the first records: they have a list for each array, and say at which
    step it was told by `step`, that of updates being one before.
    """
    kinds = []
    for kind, cls in (("activations", Activations), ("updates", Updates)):
        own = _fields(cls)
        head = {"at": AT, "kind": {"const": kind, "description": "What was probed."}, "like": LIKE}
        own["properties"] = {**head, **own["properties"], **SEALS}
        is_whole = {"required": own["required"]}
        own["anyOf"] = [is_whole, {"required": ["like"]}]
        own["dependentRequired"] = {"like": ["at"]}
        if cls is Activations:
            own["properties"]["step"] = FIRST_AT
            own["oneOf"] = [{"required": ["at"]}, {"required": ["step"]}]
        else:
            noted = {
                "type": "object",
                "properties": {"note": NOTE},
                "required": ["note"],
                "additionalProperties": False,
            }
            weights = own["properties"]["weight_norms"]
            own["properties"]["weight_norms"] = described(
                {"anyOf": [BY_TYPE["FloatArray"], noted]}, weights["description"]
            )
        own["required"] = ["kind"]
        kinds.append(own)
    parts = {cls.__name__: _fields(cls) for cls in (InputStats, OutputStats)}
    body = {"oneOf": kinds, "$defs": {**parts, "Numbers": NUMBERS}}
    return document("probes", "A line of probes.jsonl: what a probe of activations or updates saw.", body, version=2)


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
