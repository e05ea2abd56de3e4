"""What a kind of exported file is, the registry that finds them, and writing all of an export or nothing."""

from __future__ import annotations

import contextlib
import importlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from gradguard.audit.read import Run
from gradguard.errors import GradguardError, UsageError
from gradguard.export.table import Table
from gradguard.output_path import output_folder
from gradguard.registry import Component, Registry


class Destination(Component):
    """A kind of file that tables are written to.

    Attributes:
        needs: the module that it is written with, "" for none; it is imported only when it is used.
        extra: the extra of gradguard that installs it.
        most_steps: of longer runs so many steps are kept, evenly, unless the user says otherwise; None for all.
    """

    needs: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    most_steps: ClassVar[int | None] = None

    @abstractmethod
    def file_name(self, table: str) -> str:
        """Return the name of the file that a table goes to; several tables may share one."""

    @abstractmethod
    def write(self, path: Path, tables: Sequence[Table], run: Run) -> None:
        """Write tables to a new file, block by block.

        Args:
            path: where; it is moved into place later.
            tables: those that share the file.
            run: which they are of.
        """

    def check(self) -> None:
        """Refuse when what it is written with is not there.

        Raises:
            UsageError: it is not installed.
        """
        if not self.needs:
            return
        try:
            importlib.import_module(self.needs)
        except ImportError as error:
            raise UsageError(
                f"--to {self.name} needs {self.needs.partition('.')[0]}, which cannot be imported ({error}); "
                f"pip install 'gradguard[{self.extra}]'"
            ) from None


DESTINATIONS: Registry[type[Destination]] = Registry("destination", "gradguard.destinations")


def destination(name: str) -> Destination:
    """Return the destination of a name.

    Raises:
        UsageError: there is none.

    Example:
        >>> destination("jsonl").file_name("statistics")
        'statistics.jsonl'
    """
    try:
        return DESTINATIONS.get(name)()
    except KeyError as error:
        raise UsageError(error.args[0]) from None


def check_folder(folder: Path) -> Path:
    """Return a folder that tables can be written to.

    Raises:
        UsageError: it is a file, or called like one.
    """
    kinds = [DESTINATIONS.get(name)() for name in DESTINATIONS.names()]
    return output_folder(folder, "the tables", {Path(kind.file_name("table")).suffix for kind in kinds} - {""})


def write_tables(
    to: Destination, folder: Path, tables: Sequence[Table], run: Run, is_forced: bool = False
) -> list[tuple[Path, list[Table]]]:
    """Write tables into a folder: all of them, or, when something fails, none.

    Args:
        to: kind of file.
        folder: made when missing.
        tables: of the run.
        run: which they are of.
        is_forced: replace files that are there.

    Returns:
        The files, each with its tables.

    Raises:
        UsageError: a file is there already, or the folder is a file.
        GradguardError: something could not be written; the folder holds what it held before.
    """
    files: dict[Path, list[Table]] = {}
    for table in tables:
        files.setdefault(folder / to.file_name(table.name), []).append(table)
    check_folder(folder)
    there = [path.name for path in files if os.path.lexists(path)]
    if there and not is_forced:
        raise UsageError(f"{folder} holds {', '.join(there)} already; choose another folder with -o, or pass --force")
    with contextlib.ExitStack() as undo:
        try:
            for missing in reversed([path for path in (folder, *folder.parents) if not os.path.lexists(path)]):
                missing.mkdir()
                undo.callback(_quietly, missing.rmdir)
            moves = []
            for path, members in files.items():
                temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
                undo.callback(_quietly, temporary.unlink)
                to.write(temporary, members, run)
                moves.append((temporary, path))
            for temporary, path in moves:
                os.replace(temporary, path)
        except OSError as error:
            raise GradguardError(
                f"{folder}: cannot be written: {error.strerror or error}; nothing was changed"
            ) from None
        undo.pop_all()
    return list(files.items())


def _quietly(action: Any) -> None:
    with contextlib.suppress(OSError):
        action()
