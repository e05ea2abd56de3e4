"""Text and numbers from a model or a record, made fit to show in a terminal."""

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


def short(value: float) -> str:
    """Return a number with three digits, written out where that is readable.

    Example:
        >>> [short(value) for value in (0.0123456, 2845.3, -123456.0, 4.62e35, float("nan"), float("inf"))]
        ['0.0123', '2,850', '-123,000', '4.62e+35', 'NaN', 'Inf']
    """
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Inf" if value > 0 else "-Inf"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if 1000 <= abs(rounded) < 1e6 else f"{rounded:.3g}"
