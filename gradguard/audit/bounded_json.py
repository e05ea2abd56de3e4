"""JSON from outside: what no writer of records makes is refused before it costs memory, time or the stack."""

from __future__ import annotations

import json
from typing import Any


MAX_DEPTH = 32  # lists and objects inside of each other; records need 6
MAX_CONTAINERS = 1_000_000  # lists and objects of one text: at most about 100 MB
LONG = b"0" * 22  # digits: a float has fewer in a row
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")


def parse(data: bytes) -> Any:
    """Return what a JSON text says; whole numbers of more than 22 digits become floats.

    Raises:
        ValueError: it is not JSON, or nested or branched like nothing that is recorded.

    Example:
        >>> parse(b'{"step": 3, "norm": 1' + b"0" * 400 + b"}")
        {'step': 3, 'norm': inf}
        >>> parse(b"[" * 100 + b"]" * 100)
        Traceback (most recent call last):
          ...
        ValueError: nested more than 32 deep
    """
    num_containers = data.count(b"[") + data.count(b"{")
    if num_containers > MAX_CONTAINERS:
        raise ValueError(f"more than {MAX_CONTAINERS:,} lists and objects")
    text = data.decode("utf-8")
    try:
        # The hook costs as much as all the rest: only a text with a long number needs it.
        has_long = LONG in data.translate(_AS_ZEROS)
        value = json.loads(text, parse_int=_number) if has_long else json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    if num_containers > MAX_DEPTH and _is_deep(value):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return value


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < len(LONG) else float(digits)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return False
    return True
