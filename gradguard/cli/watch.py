"""`gradguard watch RUN`: a run as it goes on, in the terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from gradguard.cli.render import console
from gradguard.watch.curve import BLOCKS
from gradguard.watch.plain import event_lines, headline, last_line, progress_line
from gradguard.watch.screen import screen
from gradguard.watch.watcher import View, Watcher


PROGRESS_SEC = 60.0  # between two lines about nothing, where there is no terminal
BACKLOG = 5  # lines about what happened before, likewise
BAD_ENDS = ("stopped", "failed", "interrupted")


def watch(
    run: Annotated[Path, typer.Argument(help="The run directory, on this machine or on a shared file system.")],
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600.0, help="Seconds between two looks.")] = 1.0,
    steps: Annotated[int, typer.Option(min=2, max=100_000, help="How many of the last steps are drawn.")] = 500,
) -> None:
    """Watch a run as it goes on: curves, worst layers, what was found and done, and whether it helped.

    It reads the files of the run and nothing else: start it on any machine
    that sees them, leave it with Ctrl-C at any time, the training never knows.
    Without a terminal it prints a line for each thing that happens.

    Exit code 0: the run ended well, or you left; 1: it was stopped, failed or
    its process died; 2: not a run directory.
    """
    out = console()
    watcher = Watcher(run, name, num_steps=steps)
    view = watcher.look()
    try:
        if not once and not view.is_over:
            view = _live(out, watcher, view, every) if out.is_terminal else _lines(watcher, view, every)
            if not out.is_terminal:
                raise typer.Exit(_exit_code(view))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    out.print(screen(view, out.width, is_unicode=_has_blocks(out)))
    raise typer.Exit(_exit_code(view))


def _live(out: Console, watcher: Watcher, view: View, every: float) -> View:
    """Draw on a screen of its own until the run ends or the person leaves; return the last look."""
    with Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(screen(view, out.width, out.height, _has_blocks(out)), refresh=True)
                if view.is_over:
                    return view
                time.sleep(every)
                view = watcher.look()
        except KeyboardInterrupt:
            return view


def _lines(watcher: Watcher, view: View, every: float) -> View:
    """Print a line for each thing that happens until the run ends."""
    _say(headline(view), *event_lines(view)[-BACKLOG:])
    told = time.monotonic()
    while not view.is_over:
        time.sleep(every)
        view = watcher.look()
        lines = event_lines(view)
        if not lines and time.monotonic() - told >= PROGRESS_SEC:
            lines = [progress_line(view)]
        if lines:
            told = time.monotonic()
            _say(*lines)
    _say(last_line(view))
    return view


def _say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)  # at once, though it goes to a file


def _has_blocks(out: Console) -> bool:
    try:
        BLOCKS.encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _exit_code(view: View) -> int:
    return 1 if view.status in BAD_ENDS else 0
