"""All schemas, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gradguard.errors import UsageError, did_you_mean
from gradguard.policy.json_schema import policy_json_schema
from gradguard.schemas.form import JsonSchema
from gradguard.schemas.probes import probes_schema
from gradguard.schemas.record import record_schema
from gradguard.schemas.replay import replay_schema
from gradguard.schemas.run_info import run_schema
from gradguard.schemas.seals import seals_schema
from gradguard.schemas.tables import COLUMNS, table_schema


SCHEMAS: dict[str, Callable[[], JsonSchema]] = {
    "policy": policy_json_schema,
    "record": record_schema,
    "run": run_schema,
    "probes": probes_schema,
    "replay": replay_schema,
    "seals": seals_schema,
    **{name: partial(table_schema, name) for name in COLUMNS},
}


def schema_of(name: str) -> JsonSchema:
    """Return one schema.

    Raises:
        UsageError: there is none of that name.

    Example:
        >>> schema_of("record")["$id"]
        'urn:gradguard:record:1'
    """
    if name not in SCHEMAS:
        raise UsageError(f"unknown schema {name!r}{did_you_mean(name, SCHEMAS)}")
    return SCHEMAS[name]()
