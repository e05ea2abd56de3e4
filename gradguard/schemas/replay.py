"""The schema of a line of `replay.jsonl`: what diagnoses read beside the rows of statistics."""

from __future__ import annotations

from typing import Any

from gradguard.record.replay import Kind
from gradguard.schemas.form import COUNT, SEALS, JsonSchema, described, document, list_of


TEXT: JsonSchema = {"type": "string"}
FLAG: JsonSchema = {"type": "boolean"}
NUMBER: JsonSchema = {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/Float"}]}
ARRAY: JsonSchema = {"$ref": "#/$defs/Array"}
EXACT: JsonSchema = {"$ref": "#/$defs/Exact"}
FACTS: dict[str, JsonSchema] = {
    "overflowed": described(list_of(COUNT), "Rows of parameters whose norm overflowed though every entry is finite."),
    "exact_norms": {"description": "Norms that float32 cannot hold, by row.", "$ref": "#/$defs/Map"},
    "nonfinite": {"description": "(N, 3) row, NaN entries, infinite entries.", **ARRAY},
    "bad_state": described(list_of(TEXT), "Parameters and buffers that were found non-finite."),
    "bad_ranks": described(list_of(COUNT), "Ranks that observed a non-finite loss."),
    "dropped_microbatches": described(COUNT, "Backward passes that were taken back."),
    "num_microbatches": described(COUNT, "Backward passes that were accumulated for the step."),
    "scaler_skips": described(COUNT, "GradScaler's skips since the last applied step."),
    "variance_growth": described(NUMBER, "Of the running variance that grew most, how many times over."),
    "grown_variance": described(TEXT, "Its name."),
    "has_loss": described(FLAG, "A loss was observed, though it is NaN."),
    "origin": {
        "description": "Where NaN or infinity came into the step, as far as it is known.",
        "$ref": "#/$defs/Map",
    },
}
WHOLE: dict[str, JsonSchema] = {
    "step": described(COUNT, "Optimizer step."),
    "loss": described(NUMBER, "Observed."),
    "has_loss": described(FLAG, "A loss was observed."),
    "lr": described(NUMBER, "Learning rate without the guard's factor."),
    "global_norm": described(NUMBER, "Of the gradient."),
    "finite": described(FLAG, "Every entry of the gradient is finite."),
    "is_plain": described(FLAG, "Every parameter has a gradient, and every norm is finite and above 0."),
    "is_stale": described(FLAG, "Gradients were not reset since the last step."),
    "loss_scale": described(NUMBER, "Of the GradScaler, 1 without one."),
    "found_inf": described(FLAG, "GradScaler skips the step."),
    "is_late": described(FLAG, "The gradients were gone when the numbers arrived."),
    "norms": {"description": "(P,) of the gradients.", **ARRAY},
}
WEIGHTS: dict[str, JsonSchema] = {
    "norms": {"description": "(P,) of the weights, as they were sampled.", **ARRAY},
    "sgd_reach": described(NUMBER, "Norm of all weights where the optimizer is SGD; infinite for others."),
    "shrinkage": described(NUMBER, "Largest share of a weight that weight decay takes off a step."),
}
RESUMED: dict[str, JsonSchema] = {
    "step": described(COUNT, "Step that is taken next."),
    "judgement": {"description": "Rolling statistics and states of diagnoses.", **EXACT},
    "intervening": {"description": "Histories that decisions look at.", **EXACT},
    "snapshots": {"description": "Rolling statistics of the snapshots that came with the state, by step.", **EXACT},
}
# Of each kind: what the line is, the fields that it has, and those that it may have.
KINDS: dict[Kind, tuple[str, dict[str, JsonSchema], dict[str, JsonSchema]]] = {
    "layout": (
        "The rows to come are about other parameters.",
        {"index": described(COUNT, "Their place in the layouts of run.json.")},
        {},
    ),
    "weights": ("The weights were sampled.", WEIGHTS, {}),
    "spreads": (
        "How the units of each weight differ.",
        {"spreads": {"description": "(P,) in [0, 1]; NaN where there are no units.", **ARRAY}},
        {},
    ),
    "lateness": (
        "From this row on steps are judged one step later, or no longer.",
        {"is_late": described(FLAG, "Whether they are.")},
        {},
    ),
    "facts": ("What the row leaves out.", {}, FACTS),
    "aside": ("A judgement without a row.", WHOLE, FACTS),
    "forget": (
        "The rolling statistics started afresh.",
        {"why": described({"enum": ["rebaselined", "operated"]}, "A remedy, or surgery on the model.")},
        {},
    ),
    "roll_back": (
        "The rolling statistics went back to those of a snapshot.",
        {"snapshot": described(COUNT, "Step of the snapshot.")},
        {},
    ),
    "resumed": ("A saved state was loaded.", RESUMED, {}),
}
DEFINITIONS: dict[str, JsonSchema] = {
    "Float": {
        "type": "object",
        "description": "A float that JSON has no word for.",
        "properties": {"float": described({"enum": ["nan", "inf", "-inf"]}, "As Python writes it.")},
        "required": ["float"],
        "additionalProperties": False,
    },
    "Array": {
        "type": "object",
        "description": "An array of numbers, bit by bit.",
        "properties": {
            "array": described({"type": "string", "pattern": "^[<>|][fiub][0-9]+$"}, "Its dtype, as numpy writes it."),
            "shape": described(list_of(COUNT), "Its shape."),
            "data": described(TEXT, "base64 of its bytes."),
            "packed": described(TEXT, "base64 of a zlib stream of its bytes."),
            "planes": described(
                TEXT, "base64 of a zlib stream of the first bytes of all numbers, the second ones, ..."
            ),
        },
        "required": ["array", "shape"],
        "oneOf": [{"required": [name]} for name in ("data", "packed", "planes")],
        "additionalProperties": False,
    },
    "Map": {
        "type": "object",
        "description": "A mapping, whose keys may be numbers.",
        "properties": {
            "map": described(
                list_of({"type": "array", "prefixItems": [{"type": ["string", "integer"]}, EXACT], "minItems": 2}),
                "Pairs of a key and its value.",
            )
        },
        "required": ["map"],
        "additionalProperties": False,
    },
    "Exact": {
        "description": "Nested state that reads back to the very same.",
        "anyOf": [
            {"type": ["null", "boolean", "number", "string"]},
            list_of(EXACT),
            *({"$ref": f"#/$defs/{name}"} for name in ("Float", "Array", "Map")),
        ],
    },
}


def replay_schema() -> JsonSchema:
    """Return the schema of a line of `replay.jsonl`."""
    body = {"oneOf": [_line(kind, *told) for kind, told in KINDS.items()], "$defs": DEFINITIONS}
    return document("replay", "A line of replay.jsonl: what diagnoses read beside the rows of statistics.", body)


def _line(kind: str, what: str, needed: dict[str, JsonSchema], others: dict[str, JsonSchema]) -> JsonSchema:
    head: dict[str, Any] = {
        "row": described(COUNT, "Row of statistics, from 0, that is judged next."),
        "kind": {"const": kind, "description": "What the line is."},
        "within": {"const": True, "description": "Written between the judgement of that row and its being taken in."},
    }
    return {
        "type": "object",
        "description": what,
        "properties": {**head, **others, **needed, **SEALS},
        "required": ["row", "kind", *needed, *SEALS],
        "additionalProperties": False,
    }
