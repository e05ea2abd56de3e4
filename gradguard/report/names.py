"""Names of layers and runs as the page shows them: visible, and no two alike."""

from __future__ import annotations

from collections.abc import Iterable

from gradguard.printable import printable


def shown_names(names: Iterable[str]) -> list[str]:
    r"""Return the names as text that is plainly visible; of those that look alike the later ones get a number.

    Example:
        >>> shown_names(["wte", "a\x1b", "a\\x1b"])
        ['wte', 'a\\x1b', 'a\\x1b (2)']
    """
    taken: set[str] = set()
    result = []
    for name in names:
        base = shown = printable(name) or "(no name)"
        number = 1
        while shown in taken:
            number += 1
            shown = f"{base} ({number})"
        taken.add(shown)
        result.append(shown)
    return result
