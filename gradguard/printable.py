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


def layer_name(name: str) -> str:
    """Return the name of a module or parameter as it can stand in a sentence: a bare number is no word.

    Example:
        >>> layer_name("h.0.attn"), layer_name("8"), layer_name("0.1"), layer_name("fc1"), layer_name("")
        ('h.0.attn', "layer '8'", "layer '0.1'", 'fc1', 'the model itself')
    """
    if not name:
        return "the model itself"
    return name if any(char.isalpha() for char in name) else f"layer {name!r}"


def short(value: float, digits: int = 3) -> str:
    """Return a number as a person reads it: few digits, an integer in full, a power of ten only where it must be.

    Example:
        >>> [short(value) for value in (0.0123456, 2845.3, -123456.0, 5892, 270e6, 2.0e-5, 4.62e35)]
        ['0.0123', '2,850', '-123,000', '5,892', '270 million', '2e-5', '4.62e35']
        >>> short(float("nan")), short(float("-inf"))
        ('NaN', '-Inf')
    """
    if isinstance(value, int) and abs(value) < 10**15:
        return f"{value:,}"
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Inf" if value > 0 else "-Inf"
    rounded = float(f"{value:.{digits}g}")
    size = abs(rounded)
    if 1000 <= size < 1e6:
        return f"{rounded:,.0f}"
    if 1e6 <= size < 1e12:
        unit, name = (1e6, "million") if size < 1e9 else (1e9, "billion")
        return f"{rounded / unit:.{digits}g} {name}"
    return tidy(f"{rounded:.{digits}g}")


def tidy(text: str) -> str:
    """Return a number in scientific notation without signs and zeros that say nothing.

    Example:
        >>> tidy("3e-05"), tidy("1.5e+09"), tidy("12")
        ('3e-5', '1.5e9', '12')
    """
    digits, mark, power = text.partition("e")
    return f"{digits}e{int(power)}" if mark else text


def compact(value: float) -> str:
    """Return a number for a table, in at most 9 characters unless it is an integer.

    Example:
        >>> [compact(value) for value in (270e6, 1234.5, -1.5e-7)]
        ['2.7e8', '1,230', '-1.5e-7']
    """
    return tidy(f"{value:.3g}") if isinstance(value, float) and 1e6 <= abs(value) < 1e12 else short(value)
