"""In what two runs were set up differently: policy, versions, parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gradguard.audit.read import Run
from gradguard.record.encode import to_json
from gradguard.records import Frozen


ABSENT = object()


class Setting(Frozen):
    """Something that is set in one way in one run and in another way in the other.

    Args:
        name: such as "policy.horizon", "versions.torch", or "parameters.0.weight".
        a: its value in the first run, as JSON text unless it is text; "" where it is not there.
        b: in the second.
    """

    name: str
    a: str
    b: str


def setup_differences(run_a: Run, run_b: Run) -> tuple[Setting, ...]:
    """Return what is set differently: versions, then the policy, then the shapes and types of parameters.

    A rule that only one of the policies has is one difference.
    """
    a, b = _settings(run_a), _settings(run_b)
    return tuple(Setting(name=name, a=left, b=right) for name, left, right in _differences("", a, b))


def _settings(run: Run) -> dict[str, Any]:
    parameters = {}
    with contextlib.suppress(KeyError, TypeError):  # a damaged layout has nothing to say
        for layout in run.info["layouts"]:
            for name, shape, dtype in zip(layout["parameters"], layout["shapes"], layout["dtypes"], strict=False):
                parameters[str(name)] = f"{dtype} {to_json(shape)}"
    return {"versions": run.info.get("versions") or {}, "policy": run.policy, "parameters": parameters}


def _differences(place: str, a: Any, b: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value in A, value in B) of single values that differ."""
    left, right = _by_key(a), _by_key(b)
    if left is None or right is None:
        if a != b:
            yield place, _shown(a), _shown(b)
        return
    for key in dict.fromkeys([*left, *right]):
        yield from _differences(f"{place}.{key}" if place else key, left.get(key, ABSENT), right.get(key, ABSENT))


def _by_key(value: Any) -> dict[str, Any] | None:
    """Return what a value holds by name: rules by theirs, remedies by theirs, other lists by position; None for one."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        if all("name" in item for item in value):
            value = {str(item["name"]): {key: inner for key, inner in item.items() if key != "name"} for item in value}
        elif all(len(item) == 1 for item in value) and len({*map(str, map(list, value))}) == len(value):
            value = {key: inner for item in value for key, inner in item.items()}
        else:
            value = {str(number): item for number, item in enumerate(value, start=1)}
    return value if isinstance(value, dict) else None


def _shown(value: Any) -> str:
    if value is ABSENT:
        return ""
    return value if isinstance(value, str) else to_json(value)
