"""How far the runs are: bars with the live loss in a terminal, a line now and then where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from loguru import logger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


OnStep = Callable[[int, float, Sequence[str]], None]  # step, loss, what happened at it
NUM_LINES = 3  # a run, where there is no terminal


@contextmanager
def progress(console: Console, styles: Mapping[str, str], num_steps: int) -> Iterator[Callable[[str], OnStep]]:
    """Show the progress of several runs, and above it what happens in them.

    Args:
        console: where to show it.
        styles: rich style of each run by its name, in their order.
        num_steps: steps of each run.

    Yields:
        A function that takes the name of the run that begins, and returns what is to be called after each of its steps.
    """
    logger.disable("gradguard")  # its messages are told here, and would tear the bars apart
    try:
        if console.is_terminal:
            with _bars(console, styles, num_steps) as bars:
                yield lambda name: _News(console, name, styles[name], bars(name))
        else:
            yield lambda name: _News(console, name, styles[name], _lines(console, name, num_steps))
    finally:
        logger.enable("gradguard")


class _News:
    """Prints what happens in a run, then shows how far it is; what goes on from the step before is not repeated."""

    def __init__(self, console: Console, name: str, style: str, show: Callable[[int, float], None]) -> None:
        self._console, self._show = console, show
        self._head = Text(f"  {name:<9}  ", style)
        self._before: Sequence[str] = ()

    def __call__(self, step: int, loss: float, news: Sequence[str]) -> None:
        for line in news:
            if line not in self._before:
                told = self._head + Text(f"{step:>4}  {line}", "yellow" if line.startswith("fault") else "")
                self._console.print(told, no_wrap=True, overflow="ellipsis")
        self._before = news
        self._show(step, loss)


@contextmanager
def _bars(
    console: Console, styles: Mapping[str, str], num_steps: int
) -> Iterator[Callable[[str], Callable[[int, float], None]]]:
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:<6}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, expand=True) as bars:
        tasks = {
            name: bars.add_task(f"[{style}]{name:<9}[/]", total=num_steps, start=False, loss="")
            for name, style in styles.items()
        }

        def begin(name: str) -> Callable[[int, float], None]:
            bars.start_task(tasks[name])
            return lambda step, loss: bars.update(tasks[name], completed=step + 1, loss=f"{loss:.3f}")

        yield begin


def _lines(console: Console, name: str, num_steps: int) -> Callable[[int, float], None]:
    def show(step: int, loss: float) -> None:
        if (step + 1) % (num_steps // NUM_LINES) == 0:
            console.print(f"  {name:<9}  step {step + 1:>3} of {num_steps}, loss {loss:.3f}")

    return show
