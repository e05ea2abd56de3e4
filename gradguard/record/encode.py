"""Values to strict JSON: ASCII only, NaN and infinity as the strings "NaN", "Infinity", "-Infinity"."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python


def to_json(value: Any, indent: int | None = None) -> str:
    r"""Return `value` as JSON that every parser reads back to the same thing.

    ASCII escapes keep control characters and line breaks of a layer's name out of the file, so that one record stays
    one line. What JSON cannot hold is written as its `repr`: a record with an odd value in it beats a missing record.

    Args:
        value: pydantic models, dicts, lists, numbers, text, paths, dates, in any nesting.
        indent: spaces a level; None writes one line without spaces.

    Example:
        >>> to_json({"loss": float("nan"), "name": "a\x1bb"})
        '{"loss":"NaN","name":"a\\u001bb"}'
    """
    separators = (",", ":") if indent is None else None
    if indent is None and value.__class__ is dict:  # what is plain already, as thousands of names are, takes one call
        try:
            return json.dumps(value, allow_nan=False, separators=separators)
        except (TypeError, ValueError):
            pass
    return json.dumps(_plain(value), ensure_ascii=True, allow_nan=False, indent=indent, separators=separators)


_PLAIN = (str, int)  # thousands of names and sizes are no reason for as many calls


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if item.__class__ in _PLAIN else _plain(item) for item in value]
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    return _plain(to_jsonable_python(value, fallback=repr))
