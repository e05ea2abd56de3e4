"""The schema of `run.json`."""

from __future__ import annotations

from gradguard.schemas.form import COUNT, SHA256, TIME, JsonSchema, described, document, list_of, nullable


TEXT: JsonSchema = {"type": "string"}
LAYOUT: JsonSchema = {
    "type": "object",
    "description": "What the columns stand for, from a chunk on; a new one when the optimizer got other parameters.",
    "properties": {
        "first_chunk": described(COUNT, "First chunk of statistics/ that it holds for."),
        "first_gradients_chunk": described(COUNT, "First chunk of gradients/ that it holds for."),
        "parameters": described(list_of(TEXT), "Names of the P parameters."),
        "shapes": described(list_of(list_of(COUNT)), "Shape of each."),
        "dtypes": described(list_of(TEXT), "Type of each, as `float32`."),
        "groups": described(list_of(COUNT), "Param group of each."),
    },
    "required": ["first_chunk", "parameters", "shapes", "dtypes"],
    "additionalProperties": False,
}


def run_schema() -> JsonSchema:
    """Return the schema of the facts about a run.

    `num_records` and what follows are there when the run has ended; further facts may stand beside these.
    """
    body: JsonSchema = {
        "type": "object",
        "properties": {
            "v": {"enum": [1, 2], "description": "Version of the record: 2 packs rows, and numbers of probes."},
            "run_id": described(TEXT, "Unique to the run; the first line of the journal is chained to it."),
            "name": described(nullable(TEXT), "Of the guard, when several share a run directory."),
            "status": {"enum": ["running", "closed", "stopped", "failed"], "description": "How it ended."},
            "created": described(TIME, "When the guard was attached: UTC, ISO 8601."),
            "ended": described(nullable(TIME), "When it ended; null while it runs, and when its process died."),
            "pid": described(COUNT, "Process that records."),
            "host": described(TEXT, "Its machine."),
            "is_sealed": {"type": "boolean", "description": "seals.jsonl covers the other files."},
            "layouts": described(list_of(LAYOUT), "What the columns of the statistics stand for."),
            "policy": {"type": "object", "description": "The policy in force, with all defaults."},
            "num_seals": described(COUNT, "Lines of seals.jsonl."),
            "policy_sha256": described(SHA256, "Of the policy's JSON text."),
            "versions": {"type": "object", "additionalProperties": TEXT, "description": "Of what it ran with."},
            "num_records": described(COUNT, "Lines of the journal."),
            "last_hash": described(SHA256, "`hash` of the last line."),
            "num_rows": described(COUNT, "Rows of statistics/."),
            "num_rows_lost": described(COUNT, "Rows that the disk did not take."),
            "num_gradients_rows": described(COUNT, "Rows of gradients/."),
            "num_gradients_rows_lost": described(COUNT, "Rows that the disk did not take."),
        },
        "required": ["v", "run_id", "name", "status", "created", "ended", "pid", "host", "layouts"],
    }
    return document("run", "The facts about a run: run.json.", body, version=2)
