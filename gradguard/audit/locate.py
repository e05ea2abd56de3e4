"""Where on disk the record of a run is, and what its `run.json` says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from gradguard.audit.bounded_json import parse
from gradguard.audit.line import NewerVersionError, check_version
from gradguard.audit.regular_file import read_bounded
from gradguard.errors import RecordError, did_you_mean
from gradguard.record.directory import INFO_FILE, INFO_VERSION


MAX_INFO_BYTES = 32 * 1024 * 1024
MAX_HINTS = 5  # runs named in an error message
HINT_DEPTH = 3  # folders deep that they are looked for
HINT_ENTRIES = 5000  # entries of folders that are looked at


def read_info(path: Path) -> dict[str, Any]:
    """Return what `run.json` of a run directory says.

    Raises:
        RecordError: the path is not a run directory (runs near it are named), or its `run.json` cannot be read.
    """
    try:
        info = parse(read_bounded(path / INFO_FILE, MAX_INFO_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(_not_a_run(path)) from None
    except OSError as error:
        raise RecordError(f"{path / INFO_FILE}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise RecordError(f"{path / INFO_FILE}: not valid JSON; the run ended before it was set up") from None
    if not isinstance(info, dict) or not isinstance(info.get("run_id"), str):
        raise RecordError(f"{path / INFO_FILE}: not the facts of a run (no run_id)")
    check_version(info.get("v"), str(path / INFO_FILE), INFO_VERSION)
    return info


def run_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the guards that recorded under a run directory, sorted; without the unnamed one."""
    folder = Path(path)
    names = []
    for entry in folder.glob(f"*/{INFO_FILE}") if os.path.isdir(folder) else ():
        try:
            is_named = read_info(entry.parent).get("name") == entry.parent.name
        except NewerVersionError:
            is_named = True  # refused with advice when it is read
        except RecordError:
            is_named = False
        if is_named:  # otherwise it is a run of its own, in a folder of runs
            names.append(entry.parent.name)
    return sorted(names)


def locate(path: str | os.PathLike[str], name: str | None = None) -> Path:
    """Return the directory that holds the files of the guard meant.

    Args:
        path: a run directory.
        name: the guard's name; not needed when there is one guard.

    Raises:
        RecordError: it is not a run directory, or it is not clear which guard is meant.
    """
    if not os.fspath(path):
        raise RecordError("an empty path is no run directory")
    folder = Path(path)
    names = run_names(folder)
    if name is not None:
        if name not in names:
            raise RecordError(f"{folder}: no guard named {name!r} recorded here{did_you_mean(name, names)}")
        return folder / name
    if not names or os.path.exists(folder / INFO_FILE):
        return folder
    if len(names) > 1:
        raise RecordError(f"{folder}: several guards recorded here, say which by name: {', '.join(names)}")
    return folder / names[0]


def _not_a_run(path: Path) -> str:
    if not os.path.exists(path):
        what, below = "does not exist", path.parent
    elif os.path.isfile(path):
        what, below = "is a file; give the run directory", path.parent
    else:
        what, below = f"is not a run directory (no {INFO_FILE})", path
    near = [str(folder) for folder in islice(_runs_below(below), MAX_HINTS + 1)]
    hint = f"; runs near it: {', '.join(near[:MAX_HINTS])}" if near else ""
    return f"{path} {what}{hint}{', ...' if len(near) > MAX_HINTS else ''}"


def _runs_below(folder: Path) -> Iterator[Path]:
    """Yield the run directories at and below a folder, nearest first, without walking a whole disk."""
    level, num_left = [folder], HINT_ENTRIES
    for _ in range(HINT_DEPTH + 1):
        folders: list[Path] = []
        for place in level:
            if os.path.isfile(place / INFO_FILE):
                yield place
            try:
                with os.scandir(place) as entries:
                    seen = list(islice(entries, num_left))
            except OSError:
                continue
            num_left -= len(seen)
            folders += sorted(Path(entry.path) for entry in seen if entry.is_dir(follow_symlinks=False))
        level = folders
