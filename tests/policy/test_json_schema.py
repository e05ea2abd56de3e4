"""The JSON Schema of policy files agrees with what loading accepts."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS
from gradguard.policy.json_schema import policy_json_schema
from gradguard.policy.load import PRESETS, load_preset, preset_names


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = policy_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", preset_names())
def test_it_accepts_every_preset_as_written_and_as_resolved(
    validator: jsonschema.Draft202012Validator, name: str
) -> None:
    validator.validate(
        yaml.safe_load(PRESETS.joinpath(f"{name}.yaml").read_text(encoding="utf-8").replace("1e2", "100"))
    )
    validator.validate(load_preset(name).model_dump(mode="json"))


@pytest.mark.parametrize(
    "policy",
    [
        {"version": 2},
        {"mod": "observe"},
        {"rules": [{"when": "nonfinte", "do": "stop"}]},
        {"rules": [{"when": "nonfinite"}]},
        {"rules": [{"when": "nonfinite", "do": "clip_norm"}]},
        {"rules": [{"when": "nonfinite", "do": []}]},
        {"rules": [{"when": "nonfinite", "do": {"clip_norm": {"max_norm": 1, "scop": "auto"}}}]},
        {"rules": [{"when": "nonfinite", "do": {"clip_norm": {"max_norm": -1}}}]},
        {"rules": [{"when": "nonfinite", "do": {"clip_norm": {"max_norm": 1}, "stop": {}}}]},
        {"rules": [{"when": "nonfinite", "do": "stop", "cooldown": -1}]},
        {"monitor": {"parameters": []}},
    ],
)
def test_it_refuses_what_loading_refuses(validator: jsonschema.Draft202012Validator, policy: dict[str, Any]) -> None:
    assert not validator.is_valid(policy)


def test_every_registered_component_can_be_completed_with_its_options() -> None:
    definitions = policy_json_schema()["$defs"]
    for registry, key in ((DIAGNOSES, "diagnosis"), (REMEDIES, "remedy"), (SINKS, "sink")):
        offered = definitions[key]["anyOf"][-1]["properties"]
        assert sorted(offered) == registry.names()
        for cls in registry:
            own = offered[cls.name].get("anyOf", [offered[cls.name]])[0]
            assert list(own["properties"]) == list(cls.model_fields)
            assert own["description"] == cls.what
