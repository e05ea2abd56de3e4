"""`gradguard schema`: the JSON Schema of the policy file."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON Schema of policy files, from which an editor completes and checks them.

    Save it and name it in the first line of a policy, as YAML extensions of editors read it:

        # yaml-language-server: $schema=gradguard.schema.json
    """
    from gradguard.policy.json_schema import policy_json_schema

    typer.echo(json.dumps(policy_json_schema(), indent=2))
