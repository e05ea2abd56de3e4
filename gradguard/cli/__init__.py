"""The command line: one subcommand a file, imported when it is used.

A subcommand `name` is the function `name` of the module `gradguard.cli.name`; its line in `COMMANDS` is all that
`gradguard --help` needs, so that help and the audit commands come without the cost of importing torch.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gradguard.errors import GradguardError, UsageError
from gradguard.printable import printable


COMMANDS = {
    "demo": "Break a small training run on purpose, without and with the guard.",
    "init": "Write a commented policy file to start from.",
    "preflight": "Check a training before its first step.",
    "check": "Check a policy file and list every mistake with its line.",
    "drill": "Strike a small training with every kind of fault under a policy.",
    "watch": "Watch a run as it goes on, or look at how it stands.",
    "audit": "Summarise a run: is it healthy, what was done, did it help.",
    "show": "Show all that is recorded about one step.",
    "backtest": "Replay a run under another policy: what would it have done?",
    "tune": "Find out how close healthy runs came to each threshold.",
    "compare": "Compare two runs step by step: where do they part?",
    "export": "Export what was recorded as CSV, JSON lines, Parquet or TensorBoard.",
    "report": "Write one page about a run, or several, for the browser.",
    "verify": "Check that a record is complete and was not edited.",
    "explain": "Explain a diagnosis, a remedy or a sink.",
    "schema": "Print the JSON Schema of policies, of the record or of an exported table.",
}
PACKAGES = ("torch", "numpy", "pydantic")


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports the one that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, line in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=line)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the real command behind it, and what is left of the arguments."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(str(name)), rest


def _load(name: str) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(name)(getattr(importlib.import_module(f"gradguard.cli.{name}"), name))
    return typer.main.get_command(app)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _print_version(is_asked: bool) -> None:
    if is_asked:
        others = ", ".join(f"{package} {_installed(package)}" for package in PACKAGES)
        typer.echo(f"gradguard {_installed('gradguard')} (Python {platform.python_version()}, {others})")
        raise typer.Exit


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False)


@app.callback()
def _root(
    _: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the versions that matter, and leave."
    ),
) -> None:
    """Keep a PyTorch training run alive and honest: policies, and what was recorded under them."""


def _refuse_empty(args: Sequence[str]) -> None:
    """A path that is empty would stand for the working directory."""
    if "" in args:
        place = list(args).index("")
        before = f" after {args[place - 1]!r}" if place else ""
        raise UsageError(f"argument {place + 1}{before} is empty; was a variable of the shell not set?")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 fine, 1 problems found, 2 wrong call or unusable input.

    Args:
        args: as on a command line, without the program's name; None for those of the process.
    """
    # A name that the terminal's encoding does not have is shown with escapes instead of ending in a traceback.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        _refuse_empty(sys.argv[1:] if args is None else args)
        typer.main.get_command(app).main(args=None if args is None else list(args), prog_name="gradguard")
    except GradguardError as error:
        for line in str(error).split("\n"):
            print(printable(line), file=sys.stderr)
        return 2
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0
