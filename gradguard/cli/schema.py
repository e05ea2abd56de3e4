"""`gradguard schema [NAME]`: the JSON Schema of the policy file, of the record, or of an exported table."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(
    name: Annotated[
        str,
        typer.Argument(
            help="policy; record (a line of interventions.jsonl), run (run.json), or a line of probes.jsonl, "
            "replay.jsonl, seals.jsonl (probes, replay, seals); or a table of gradguard export: statistics, gradients, "
            "activations, updates, interventions, events."
        ),
    ] = "policy",
) -> None:
    """Print the JSON Schema of policy files, of the record, or of an exported table.

    Editors complete and check a policy from its schema. Save it and name it in
    the first line of the policy, as YAML extensions of editors read it:

        # yaml-language-server: $schema=gradguard.schema.json
    """
    from gradguard.schemas.catalog import schema_of

    typer.echo(json.dumps(schema_of(name), indent=2))
