"""Nested state to JSON and back to the very same: floats, arrays with their dtype, and keys that are no text."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from typing import Any

import numpy as np


MAX_ARRAY_BYTES = 1 << 28  # of one array that is read: no line may claim all of the memory
MAX_DEPTH = 16


def to_exact(value: Any) -> Any:
    """Return what JSON can hold, from which `from_exact` makes the same again; tuples become lists.

    Args:
        value: numbers, text, None, numpy arrays of numbers, and lists and dicts of these.

    Example:
        >>> to_exact({3: [1.5, float("inf")]})
        {'map': [[3, [1.5, {'float': 'inf'}]]]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray):
        data = value.tobytes()
        if value.dtype.kind == "f":  # their first bytes are alike, the last ones noise
            planes = np.frombuffer(data, dtype=np.uint8).reshape(-1, value.dtype.itemsize).T.tobytes()
            name, data = min(("data", data), ("planes", zlib.compress(planes, 9)), key=lambda told: len(told[1]))
        else:
            name, data = "packed", zlib.compress(data, 1)
        told = base64.b64encode(data).decode("ascii")
        return {"array": value.dtype.str, "shape": list(value.shape), name: told}
    if isinstance(value, dict):
        return {"map": [[to_exact(key), to_exact(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [to_exact(item) for item in value]
    raise ValueError(f"cannot write a {type(value).__name__} exactly")


def from_exact(value: Any, depth: int = 0) -> Any:
    """Return what `to_exact` was given.

    Raises:
        ValueError: it is not what `to_exact` returns.

    Example:
        >>> from_exact(to_exact({3: [1.5, float("inf")]}))
        {3: [1.5, inf]}
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [from_exact(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if "map" in value:
        return {_key(key): from_exact(item, depth + 1) for key, item in value["map"]}
    if "array" in value:
        return _array(value)
    if "float" in value:
        return float(value["float"])
    raise ValueError(f"expected a map, an array or a float, got keys {list(value)[:3]}")


def _key(key: Any) -> Any:
    if isinstance(key, (str, int)):
        return key
    raise ValueError(f"expected a text or a whole number as key, got {key!r}")


def _array(value: dict[str, Any]) -> Any:
    dtype, shape = np.dtype(str(value["array"])), tuple(int(size) for size in value["shape"])
    num_bytes = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "fiub" or min(shape, default=0) < 0 or num_bytes > MAX_ARRAY_BYTES:
        raise ValueError(f"an array of {dtype} and shape {shape} is not read")
    try:
        if "data" in value:
            data = base64.b64decode(value["data"], validate=True)
        else:
            packed = base64.b64decode(value["planes" if "planes" in value else "packed"], validate=True)
            data = zlib.decompressobj().decompress(packed, num_bytes + 1)
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"damaged array: {error}") from None
    if len(data) != num_bytes:
        raise ValueError(f"an array of shape {shape} takes {num_bytes} bytes, got {len(data)}")
    if "planes" in value:
        data = np.frombuffer(data, dtype=np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
