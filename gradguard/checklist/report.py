"""What a pre-flight found: to be shown, asserted in a test, or written as JSON. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradguard.checklist.finding import PreflightFinding
from gradguard.errors import PreflightFailed, UsageError, did_you_mean
from gradguard.printable import printable
from gradguard.records import SEVERITIES, Frozen, Number, Severity


if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES: dict[Severity, str] = {"critical": "bold red", "warn": "bold yellow", "info": "bold blue"}
WIDTH = 100  # of the text form


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
        from rich.console import Console

        (console or Console(highlight=False)).print(self.__rich__())

    def __str__(self) -> str:
        import io

        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=WIDTH, color_system=None, highlight=False, legacy_windows=False).print(self.__rich__())
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [
            Text.assemble(("Pre-flight  ", "bold"), (printable(self.subject), "dim")),
            Text(),
        ]
        if self.findings:
            parts += [self._table(), Text()]
        return Group(*parts, *self._closing())

    def _table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for index, found in enumerate(self.findings):
            if index:
                table.add_row()
            table.add_row(
                Text(found.severity, STYLES[found.severity]),
                Text(found.check.replace("_", " "), "bold"),
                Text(printable(found.message)),
            )
            if found.cure:
                table.add_row("", "", Text.assemble(("-> ", "green"), (printable(found.cure), "green")))
        return table

    def _closing(self) -> list[RenderableType]:
        from rich.text import Text

        found = {finding.check for finding in self.findings}
        quiet = [name.replace("_", " ") for name in self.checked if name not in found]
        lines = [Text.assemble(("fine  ", "bold green"), (", ".join(quiet), "dim"))] if quiet else []
        if self.skipped:
            lines.append(Text.assemble(("left out  ", "bold"), (", ".join(self.skipped), "dim")))
        lines += [Text.assemble(("unseen  ", "bold"), (printable(reason), "dim")) for reason in self.unseen]
        counts = [(len([f for f in self.findings if f.severity == s]), s) for s in reversed(SEVERITIES)]
        told = ", ".join(f"{count} {severity}" for count, severity in counts if count)
        verdict = ("Ready for take-off.", "bold green") if self.ok else ("Not ready.", "bold red")
        return [*lines, Text(), Text.assemble(verdict, f" {told or 'Nothing found'}.")]
