"""What a pre-flight found: to be shown, asserted in a test, or written as JSON. No torch."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradguard.checklist.finding import PreflightFinding
from gradguard.errors import PreflightFailed, UsageError, did_you_mean
from gradguard.printable import printable
from gradguard.records import SEVERITIES, Frozen, Number, Severity


if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES: dict[Severity, str] = {"critical": "bold red", "warn": "bold yellow", "info": "bold blue"}
WIDTH = 100  # of the text form
INDENT = 10  # columns of the severity


class PreflightReport(Frozen):
    """All that a pre-flight found, worst first.

    Args:
        subject: model, optimizer and batch in a few words.
        findings: what is wrong.
        checked: names of the checks that ran.
        skipped: those that the user left out.
        unseen: what could not be looked at, and why.
        loss: on the batch, before any step; None when it could not be computed.
        overfit: losses of the one-batch overfit, None if it was not asked for.
    """

    subject: str
    findings: tuple[PreflightFinding, ...] = ()
    checked: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    loss: Number = None
    overfit: tuple[float, ...] | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found that calls for a change: no finding at "warn" or above."""
        return not self.at_least("warn")

    @property
    def exit_code(self) -> int:
        """0 if `ok`, else 1."""
        return 0 if self.ok else 1

    def at_least(self, severity: Severity) -> tuple[PreflightFinding, ...]:
        """Return the findings of this severity and above.

        Raises:
            UsageError: there is no such severity.
        """
        if severity not in SEVERITIES:
            raise UsageError(f"unknown severity {severity!r}{did_you_mean(str(severity), SEVERITIES)}")
        lowest = SEVERITIES.index(severity)
        return tuple(found for found in self.findings if SEVERITIES.index(found.severity) >= lowest)

    def raise_for_findings(self, min_severity: Severity = "warn") -> None:
        """Raise if something was found: one line is a test of the training set-up.

        Raises:
            PreflightFailed: with the text of the report; `.findings` holds those that count.
            UsageError: there is no such severity.
        """
        if found := self.at_least(min_severity):
            raise PreflightFailed(str(self), found)

    def to_json(self) -> str:
        """Return it as JSON; NaN and infinity are the strings "NaN" and "Infinity"."""
        return self.model_dump_json(indent=2)

    def show(self, console: Console | None = None) -> None:
        """Print it."""
        with _random_state_kept():
            from rich.console import Console

            (console or Console(highlight=False)).print(self.__rich__())

    def __str__(self) -> str:
        text = io.StringIO()
        with _random_state_kept():
            from rich.console import Console

            console = Console(file=text, width=WIDTH, color_system=None, highlight=False, legacy_windows=False)
            console.print(self.__rich__())
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        blank = Text()
        parts: list[RenderableType] = [Text.assemble(("Pre-flight  ", "bold"), (printable(self.subject), "dim")), blank]
        for found in self.findings:
            parts += [*_lines(found), blank]
        parts += [self._quiet(), blank] if self.checked else []
        return Group(*parts, self._verdict())

    def _quiet(self) -> RenderableType:
        """Return what was looked at without a finding, what was left out, and what could not be seen."""
        from rich.table import Table
        from rich.text import Text

        found = {finding.check for finding in self.findings}
        rows = [("fine", "green", ", ".join(_spaced(name) for name in self.checked if name not in found))]
        rows += [("left out", "bold", ", ".join(map(_spaced, self.skipped)))]
        rows += [("unseen", "bold yellow", reason) for reason in self.unseen]
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=INDENT - 2)
        grid.add_column(overflow="fold")
        for label, style, told in rows:
            if told:
                grid.add_row(Text(label, style), Text(printable(told), "dim"))
        return grid

    def _verdict(self) -> RenderableType:
        from rich.text import Text

        counts = [(sum(found.severity == severity for found in self.findings), severity) for severity in SEVERITIES]
        told = ", ".join(f"{count} {severity}" for count, severity in reversed(counts) if count)
        word = ("Ready for take-off.", "bold green") if self.ok else ("Not ready.", "bold red")
        return Text.assemble(word, f" {told or 'Nothing found'}.")


def _lines(found: PreflightFinding) -> list[RenderableType]:
    """Return a finding: how bad and what, then the sentence, then the cure."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((f"{found.severity:<{INDENT}}", STYLES[found.severity]), (_spaced(found.check), "bold"))
    lines: list[RenderableType] = [head, Padding(Text(printable(found.message)), (0, 0, 0, INDENT))]
    if found.cure:
        arrow = Table.grid(padding=(0, 1, 0, 0))
        arrow.add_row(Text("->", "green"), Text(printable(found.cure), "green"))
        lines.append(Padding(arrow, (0, 0, 0, INDENT)))
    return lines


def _spaced(name: str) -> str:
    return name.replace("_", " ")


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Rich numbers its styles with Python's random generator; the user's training is not to notice."""
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)
