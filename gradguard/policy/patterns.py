"""Selecting parameters by patterns on their fully qualified names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def select(patterns: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the indices of the selected names, ascending.

    Args:
        patterns: shell-style patterns, case-sensitive: `*` stands for anything, dots included, `?` for one character,
            `[ab]` for one of several. With "!" in front a pattern excludes. The last pattern that matches a name
            decides about it; where none does, the name is left out, unless the first pattern excludes: then it is in.
        names: fully qualified parameter names.

    Example:
        >>> select(["*", "!*.bias", "head.bias"], ["wte.weight", "h.bias", "head.bias"])
        [0, 2]
        >>> select(["!*.bias"], ["wte.weight", "h.bias"])
        [0]
    """
    if not patterns or tuple(patterns) == ("*",):
        return list(range(len(names))) if patterns else []
    rules = [(_compiled(pattern.removeprefix("!")), not pattern.startswith("!")) for pattern in reversed(patterns)]
    otherwise = patterns[0].startswith("!")
    return [
        index
        for index, name in enumerate(names)
        if next((is_included for regex, is_included in rules if regex.match(name)), otherwise)
    ]


def unmatched(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return one message for each pattern that matches no name, with the nearest names: most often it is misspelt.

    Example:
        >>> unmatched(["*.weight", "haed.*"], ["wte.weight", "head.weight"])
        ["pattern 'haed.*' matches no parameter; near: head.weight, wte.weight"]
    """
    messages = []
    for pattern in dict.fromkeys(patterns):
        bare = pattern.removeprefix("!")
        if not any(map(_compiled(bare).match, names)):
            near = _nearest(bare, names)
            hint = f"; near: {', '.join(near)}" if near else "; there are no parameters"
            messages.append(f"pattern {pattern!r} matches no parameter{hint}")
    return messages


def _nearest(pattern: str, names: Sequence[str], count: int = 3) -> list[str]:
    """Return the names that share the most words with a pattern, words being spelt alike."""
    parts = [set(name.split(".")) for name in names]
    words = set[str]().union(*parts)
    meant = [set(difflib.get_close_matches(word, words)) for word in re.findall(r"\w+", pattern)]
    scores = [sum(not alike.isdisjoint(part) for alike in meant) for part in parts]
    return [names[index] for index in sorted(range(len(names)), key=lambda index: -scores[index])[:count]]
