"""A progress bar over steps, on standard error, for people only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def steps_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far something is; yields what is called with the number of steps so far. Gone when it is done.

    Args:
        label: what is going on.
        total: steps in all.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    error = Console(stderr=True, markup=False)
    with Progress(*columns, console=error, transient=True, disable=not error.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
