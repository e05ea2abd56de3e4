"""Runs to a report file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradguard.audit.read import Run, read_run, run_names
from gradguard.errors import UsageError
from gradguard.output_path import output_file
from gradguard.record.atomic_write import write_atomically
from gradguard.record.directory import INFO_FILE
from gradguard.report.content import describe
from gradguard.report.names import shown_names
from gradguard.report.page import GENERATOR, render


HEAD_BYTES = 1000  # of a file, that tell whether it is a report


class Written(NamedTuple):
    """A report that was written.

    Args:
        path: of the file.
        num_bytes: its size.
        runs: what it says, a run each, see `describe`.
    """

    path: Path
    num_bytes: int
    runs: list[dict[str, Any]]


def write_report(
    paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str], name: str | None = None
) -> Written:
    """Write one page about one or several runs.

    Args:
        paths: run directories, at least one. A directory in which several guards recorded counts as several runs.
        output: the file; an earlier report is replaced, nothing else is.
        name: which guard's record, when several guards recorded there.

    Raises:
        RecordError: a path is not a run directory, or a newer gradguard wrote it.
        UsageError: the output is no place for a report, or plotly is not installed.
    """
    target = output_file(output, "a report", (".html", ".htm"))
    _check_replaced(target)
    plotly_js = _plotly_js()
    runs = [run for path in paths for run in _read(path, name)]
    titles = run_titles([run.path for run in runs])
    told = [describe(run, title, 1 / len(runs)) for run, title in zip(runs, titles, strict=True)]
    page = render("gradguard report: " + ", ".join(titles), told, plotly_js)
    try:
        write_atomically(target, page, is_durable=False)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from None
    return Written(target, len(page.encode("utf-8")), told)


def run_titles(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, with as many parts before it as tell them apart.

    Example:
        >>> run_titles([Path("/a/sgd/run"), Path("/a/adam/run")])
        ['sgd/run', 'adam/run']
    """
    longest = max((len(path.parts) for path in paths), default=0)
    for length in range(1, longest + 1):
        titles = ["/".join(path.parts[-length:]).replace("//", "/") for path in paths]
        if len(set(titles)) == len(titles):
            break
    return shown_names(titles)


def _read(path: str | os.PathLike[str], name: str | None) -> list[Run]:
    names = [] if name is not None or (Path(path) / INFO_FILE).exists() else run_names(path)
    return [read_run(path, found) for found in names] or [read_run(path, name)]


def _check_replaced(target: Path) -> None:
    if not target.exists():
        return
    try:
        with open(target, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{target}: cannot be read: {error.strerror or error}") from None
    if GENERATOR.encode("ascii") not in head:
        raise UsageError(f"{target}: exists and is no report of gradguard; choose another name")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UsageError(
            "a report needs plotly, which is not installed; try: pip install 'gradguard[report]'"
        ) from None
    return str(get_plotlyjs())
