"""In what two runs were set up differently: policy, versions, parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradguard.audit.read import Run
from gradguard.record.encode import to_json
from gradguard.records import Frozen


class Setting(Frozen):
    """Something that is set in one way in one run and in another way in the other.

    Args:
        name: such as "policy.horizon", "versions.torch", or "parameters.0.weight".
        a: its value in the first run as JSON text; "" where it is not there.
        b: in the second.
    """

    name: str
    a: str
    b: str


def setup_differences(run_a: Run, run_b: Run) -> tuple[Setting, ...]:
    """Return what is set differently: versions, then the policy, then the shapes and types of parameters."""
    a, b = dict(_settings(run_a)), dict(_settings(run_b))
    names = dict.fromkeys([*a, *b])
    return tuple(
        Setting(name=name, a=a.get(name, ""), b=b.get(name, "")) for name in names if a.get(name) != b.get(name)
    )


def _settings(run: Run) -> Iterator[tuple[str, str]]:
    yield from _flat("versions", run.info.get("versions") or {})
    yield from _flat("policy", run.policy)
    for layout in run.info.get("layouts") or []:
        names, shapes, dtypes = (layout.get(key) or [] for key in ("parameters", "shapes", "dtypes"))
        for name, shape, dtype in zip(names, shapes, dtypes, strict=False):
            yield f"parameters.{name}", f"{dtype} {to_json(shape)}"


def _flat(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the single values in nested ones; rules go by their name, not by their place in the list."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(f"{place}.{key}", item)
    elif isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        for item in value:
            yield from _flat(f"{place}.{item['name']}", {key: inner for key, inner in item.items() if key != "name"})
    else:
        yield place, to_json(value)
