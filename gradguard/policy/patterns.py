"""Selecting parameters by patterns on their fully qualified names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache


MAX_NAMES = 3  # in a hint


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
        ["pattern 'haed.*' matches no parameter; near: head.weight"]
    """
    messages = []
    for pattern in dict.fromkeys(patterns):
        bare = pattern.removeprefix("!")
        if not any(map(_compiled(bare).match, names)):
            hint = _hint(bare, names)
            messages.append(f"pattern {pattern!r} matches no parameter{hint}")
    return messages


def _hint(pattern: str, names: Sequence[str]) -> str:
    """Return the names that a pattern may be meant for, or where nothing is like it, what names there are."""
    if not names:
        return "; there are no parameters"
    if near := _nearest(pattern, names):
        return f"; near: {', '.join(near)}"
    more = f", ... ({len(names):,} in all)" if len(names) > MAX_NAMES else ""
    return f"; the parameters are {', '.join(names[:MAX_NAMES])}{more}"


def _nearest(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that share the most words with a pattern, words being spelt alike; none where none does."""
    parts = [set(name.split(".")) for name in names]
    words = set[str]().union(*parts)
    meant = [set(difflib.get_close_matches(word, words)) for word in re.findall(r"\w+", pattern)]
    scores = [sum(not alike.isdisjoint(part) for alike in meant) for part in parts]
    best = sorted((index for index in range(len(names)) if scores[index]), key=lambda index: -scores[index])
    return [names[index] for index in best[:MAX_NAMES]]
