"""How far the runs are: bars with the live loss in a terminal, a line now and then where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from loguru import logger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


OnStep = Callable[[int, float], None]  # step, loss
NUM_LINES = 3  # a run, where there is no terminal


@contextmanager
def progress(console: Console, styles: Mapping[str, str], num_steps: int) -> Iterator[Callable[[str], OnStep]]:
    """Show the progress of several runs, and what the guard says meanwhile above it.

    Args:
        console: where to show it.
        styles: rich style of each run by its name, in their order.
        num_steps: steps of each run.

    Yields:
        A function that takes the name of the run that begins, and returns what is to be called after each of its steps.
    """
    with _messages_to(console):
        if not console.is_terminal:
            yield lambda name: _lines(console, name, num_steps)
            return
        columns = (
            TextColumn("  {task.fields[run]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:<6}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, expand=True) as bars:
            tasks = {
                name: bars.add_task("", total=num_steps, start=False, loss="", run=f"[{style}]{name:<9}[/]")
                for name, style in styles.items()
            }

            def begin(name: str) -> OnStep:
                bars.start_task(tasks[name])
                return lambda step, loss: bars.update(tasks[name], completed=step + 1, loss=f"{loss:.3f}")

            yield begin


def _lines(console: Console, name: str, num_steps: int) -> OnStep:
    def show(step: int, loss: float) -> None:
        if (step + 1) % (num_steps // NUM_LINES) == 0:
            console.print(f"  {name:<9}  step {step + 1:>4} of {num_steps}  loss {loss:.3f}")

    return show


@contextmanager
def _messages_to(console: Console) -> Iterator[None]:
    """Print loguru's messages on the console: written past it, they would tear the bars apart."""

    def show(message: str) -> None:
        line = Text(f"  {message.rstrip()}", style="dim", no_wrap=True, overflow="ellipsis")
        console.print(line, crop=True)

    logger.remove()
    logger.add(show, level="WARNING", format="{message}")
    try:
        yield
    finally:
        logger.remove()
        logger.add(sys.stderr)
