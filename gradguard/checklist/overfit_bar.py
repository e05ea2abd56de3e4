"""How far the one-batch overfit is: a bar in a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


@contextmanager
def overfit_bar(num_steps: int) -> Iterator[Callable[[int, float], None]]:
    """Yield a function of (step, loss) that moves the bar; it shows and does nothing without steps or a terminal."""
    console = Console(stderr=True)
    if num_steps == 0 or not console.is_terminal:
        yield lambda step, loss: None
        return
    columns = (
        TextColumn("learning one batch"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=num_steps, loss="")
        yield lambda step, loss: bar.update(task, completed=step + 1, loss=f"{loss:.3g}")
