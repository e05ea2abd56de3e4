"""Whether a path is a place for what a command is asked to write, known before the work begins."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from gradguard.errors import UsageError


def output_file(path: str | os.PathLike[str], what: str, suffixes: Sequence[str]) -> Path:
    """Return the path of a file that can be written; whether one may be replaced is for the caller to say.

    Args:
        path: of the file.
        what: it will be, such as "a report".
        suffixes: that its name may have, in small letters; the first one is proposed.

    Raises:
        UsageError: it is empty, has another suffix, is a directory, or lies in none.

    Example:
        >>> output_file("report.html", "a report", (".html", ".htm")).name
        'report.html'
        >>> output_file("report.pdf", "a report", (".html", ".htm"))
        Traceback (most recent call last):
        gradguard.errors.UsageError: report.pdf: a report is written as .html or .htm, for example report.html
    """
    target = _path(path, what)
    if target.is_dir():
        example = target / f"{what.split()[-1]}{suffixes[0]}"
        raise UsageError(f"{target}: is a directory; give the name of a file, such as {example}")
    if target.suffix.lower() not in suffixes:
        example = target.with_suffix(suffixes[0])
        raise UsageError(f"{target}: {what} is written as {' or '.join(suffixes)}, for example {example}")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the directory {target.parent} does not exist")
    return target


def output_folder(path: str | os.PathLike[str], what: str, suffixes: Collection[str] = ()) -> Path:
    """Return the path of a folder that can be filled.

    Args:
        path: of the folder; it need not exist.
        what: goes into it, such as "the tables".
        suffixes: of files, which a folder is not called by.

    Raises:
        UsageError: it is empty, a file, or called like one.

    Example:
        >>> output_folder("out.csv", "the tables", (".csv",))
        Traceback (most recent call last):
        gradguard.errors.UsageError: out.csv is the name of a file; the tables go into a folder, for example out
    """
    folder = _path(path, what)
    nearest = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
    if os.path.lexists(nearest) and not nearest.is_dir():
        raise UsageError(f"{nearest} is a file; {what} go into a folder")
    if folder.suffix.lower() in suffixes and not folder.is_dir():
        raise UsageError(
            f"{folder} is the name of a file; {what} go into a folder, for example {folder.with_suffix('')}"
        )
    return folder


def _path(path: str | os.PathLike[str], what: str) -> Path:
    if not os.fspath(path):
        raise UsageError(f"the path of {what} is empty")
    return Path(path)
