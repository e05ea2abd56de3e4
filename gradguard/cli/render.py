"""Values to terminal text. All that comes from a record passes `text`, so that nothing in it is interpreted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.containers import Lines
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gradguard.printable import compact, printable


PIPED_WIDTH = 80
MAX_TEXT = 1000  # characters of one name or sentence
NAME_WIDTH = 20  # of the longest name that a shipped diagnosis or remedy has

# Why an action was withheld, as the journal has it, in words.
REASONS = {
    "superseded": "another rule acted on the step first",
    "dry_run": "the policy only watches (mode: observe)",
    "cooldown": "the rule had acted shortly before and rests",
    "budget": "the actions that the policy allows are spent",
    "warmup": "the rule is not in force yet at this step",
    "no_rule": "no rule of the policy acts on it",
    "below_severity": "below the severity that the rule asks for",
    "too_late": "the rule is for earlier steps only",
    "consequence": "it follows from what another rule acts on",
    "unavailable": "the remedy had nothing to work with",
    "failed": "the remedy raised an error",
}


def console() -> Console:
    """Return the console of standard output: as wide as the terminal, 80 columns and plain when it is none."""
    plain = Console(highlight=False, markup=False, emoji=False)
    return plain if plain.is_terminal else Console(highlight=False, markup=False, emoji=False, width=PIPED_WIDTH)


def text(value: object, style: str = "") -> Text:
    r"""Return text from a record as it may be shown; what goes on for ever is cut, and the cut is told.

    Example:
        >>> text("a\x1b[2Jb").plain
        'a\\x1b[2Jb'
    """
    whole = str(value)
    shown = printable(whole[:MAX_TEXT])
    more = f"... ({len(whole) - MAX_TEXT:,} more characters)" if len(whole) > MAX_TEXT else ""
    return Text(shown + more, style=style)


class Name(Text):
    """A name of a layer or parameter: where it does not fit, it is broken behind a dot, an underscore or a space."""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the widths of the longest part and of the whole."""
        return Measurement(max(map(cell_len, self._parts()), default=0), cell_len(self.plain))

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        """Return the lines; a part that is wider than a line by itself is folded."""
        breaks, end, start = [], 0, 0
        for part in self._parts():
            if end > start and cell_len(self.plain[start:end]) + cell_len(part) > width:
                breaks.append(end)
                start = end
            end += len(part)
        lines = Lines()
        for line in self.divide(breaks) if breaks else [self]:
            lines.extend(Text.wrap(Text(line.plain, style=self.style), console, width, **options))
        return lines

    def _parts(self) -> list[str]:
        return re.findall(r"[^._ ]*[._ ]+|[^._ ]+", self.plain)


def name(value: object, style: str = "") -> Name:
    """Return the name of a layer or parameter as it may be shown; see `text`."""
    return Name(text(value).plain, style=style)


def number(value: float | None) -> str:
    """Return a number in at most 9 characters, "-" for None.

    Example:
        >>> [number(value) for value in (0.00012345, 4.0, 123456.0, 1.5e9, float("nan"), None)]
        ['0.000123', '4', '123,000', '1.5e9', 'NaN', '-']
    """
    return "-" if value is None else compact(value)


def steps(first: int, last: int) -> str:
    """Return a range of steps.

    Example:
        >>> steps(3, 3), steps(3, 12)
        ('3', '3-12')
    """
    return str(first) if first == last else f"{first}-{last}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units.

    Example:
        >>> duration(7384.2), duration(75.0), duration(0.25)
        ('2 h 3 min', '1 min 15 s', '0.2 s')
    """
    if seconds is None or seconds < 0:
        return "unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    while parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{value} {unit}" for value, unit in parts[:2] if value)


def facts(rows: list[tuple[str, str]]) -> Table:
    """Return a two-column list of facts."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in rows:
        grid.add_row(text(name), text(value))
    return grid


def table(title: str, columns: list[str], right: frozenset[str] = frozenset()) -> Table:
    """Return an empty table; long cells are folded, never cut: a cut layer name is no name."""
    result = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False
    )
    for column in columns:
        result.add_column(column, justify="right" if column in right else "left", overflow="fold", header_style="dim")
    return result


def keep_whole(result: Table, column: int, names: Iterable[str]) -> None:
    """Keep the names of a column on one line each, if they are no longer than those that are shipped."""
    if column < len(result.columns):
        result.columns[column].min_width = min(NAME_WIDTH, max(map(len, names), default=0))
