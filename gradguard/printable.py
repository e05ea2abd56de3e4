"""Text from a model or a record, made safe to show in a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return `text` with every character that is not plainly visible written as an escape.

    Layer names, messages and records come from outside. Escape sequences, line breaks, marks that turn the reading
    direction and lone surrogates would let them rewrite the screen or forge a line; letters of any script stay.

    Example:
        >>> print(printable("encoder.\x1b[2Jweight"))
        encoder.\x1b[2Jweight
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
