"""The run directory: what a run is, beside what happened in it.

run_dir/run.json               facts about the run, replaced atomically
        interventions.jsonl    the journal
        seals.jsonl            what all these files hold, hash-chained
        statistics/            chunks of per-step rows
        gradients/             chunks of rows about the gradients, now and then
        probes.jsonl           what probes of activations and updates saw
        replay.jsonl           what diagnoses read beside the rows, so that the run can be replayed
        last_good.pt           the state to start again from, when the policy gave the run up
        snapshots/             states to go back to, where the policy puts them on disk
        captures/              what a step can be taken again from, where a rule asks for it
run_dir/<name>/...             the same for a guard with a name, so that several share a run_dir
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from loguru import logger

from gradguard.errors import RunDirectoryError
from gradguard.evidence.stats import ParameterTable
from gradguard.printable import printable
from gradguard.record.atomic_write import write_atomically
from gradguard.record.chain import ChainWriter, LazyChain
from gradguard.record.chunks import ChunkWriter
from gradguard.record.encode import to_json
from gradguard.record.gradients import GradientsWriter
from gradguard.record.journal import Journal
from gradguard.record.probes import PROBES_FILE, ProbesWriter
from gradguard.record.replay import REPLAY_FILE, ReplayWriter
from gradguard.record.seals import SEAL_ROWS, SEALS_FILE, SealsWriter
from gradguard.record.statistics import StatisticsWriter


INFO_FILE = "run.json"
JOURNAL_FILE = "interventions.jsonl"
STATISTICS_FOLDER = "statistics"
GRADIENTS_FOLDER = "gradients"
LAST_GOOD_FILE = "last_good.pt"
INFO_VERSION = 2  # of the files beside the journal: 2 packs chunks of rows, and numbers in probes.jsonl


class RunDirectory:
    """The files of one guard's run, open for writing; made by `create`.

    Attributes:
        path: the directory, absolute.
        info: what `run.json` says.
        journal: takes records.
        statistics: takes a row a step; call `write_layout` before the first one.
        gradients: takes a row a probe, likewise.
        probes: takes what a probe saw.
        replay: takes what else a replay needs.
    """

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info
        run_id = info["run_id"]
        self.journal = Journal(path / JOURNAL_FILE, run_id)
        self._seals = SealsWriter(path / SEALS_FILE, run_id)
        self.probes = ProbesWriter(path / PROBES_FILE, run_id)
        self.replay = ReplayWriter(path / REPLAY_FILE, run_id)
        self._chains: dict[str, ChainWriter | LazyChain] = {
            JOURNAL_FILE: self.journal.chain,
            PROBES_FILE: self.probes.chain,
            REPLAY_FILE: self.replay.chain,
        }
        (path / STATISTICS_FOLDER).mkdir(exist_ok=True)
        self.statistics = StatisticsWriter(path / STATISTICS_FOLDER, 0, watcher=self)
        self.gradients = GradientsWriter(path / GRADIENTS_FOLDER, 0, watcher=self)
        self.write_info(is_durable=False)  # `write_layout` comes next, and replaces it

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, name: str | None = None, info: Mapping[str, Any] | None = None
    ) -> RunDirectory:
        """Claim a directory for a new run; one that holds a run already is left alone and `path-2`, `-3`, ... is taken.

        Args:
            path: the run directory; made when missing, parents too.
            name: the guard's name; its files go to `path/name`.
            info: further facts for `run.json`, such as "policy" (a dict, hashed here) and the versions of packages.

        Raises:
            RunDirectoryError: the path is a file or cannot be written, or the name is not one; nothing is left behind.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     run = RunDirectory.create(f"{folder}/exp1", info={"policy": {"version": 1}})
            ...     run.finish("closed")
            ...     sorted(entry.name for entry in run.path.iterdir())
            ['interventions.jsonl', 'run.json', 'seals.jsonl', 'statistics']
        """
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise RunDirectoryError(f"run_dir must be the path of a directory, got {path!r}")
        if name is not None:
            _check_name(name)
        wanted = Path(os.path.abspath(os.path.expanduser(path)))
        for number in count(1):
            root = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            target = root / name if name else root
            try:
                with contextlib.ExitStack() as undo:
                    _claim(target, undo)
                    run = cls(target, _facts(name, info or {}))
                    undo.pop_all()
            except _TakenError:
                continue
            except OSError as error:
                raise RunDirectoryError(_explain(target, error)) from error
            if number > 1:
                logger.warning("{}", printable(f"{wanted} holds an earlier run; this one is recorded in {root}"))
            return run
        raise AssertionError("unreachable")

    def write_info(self, is_durable: bool = True, is_last: bool = False) -> None:
        """Replace `run.json` by the current `info`, atomically; a seal says before it what it will be.

        Args:
            is_durable: wait until it is on the disk.
            is_last: nothing is written after it.

        Raises:
            ReplacedError: another run may be in the directory by now; it is left alone.
            OSError: it could not be written; the file is as it was.
        """
        self.info["num_seals"] = self._seals.chain.num_lines + 1
        fields = []
        for key, value in self.info.items():
            is_long = key in ("layouts", "policy")  # on one line: half the bytes, and by the faster encoder
            fields.append(f'"{key}": ' + to_json(value, indent=None if is_long else 2).replace("\n", "\n  "))
        text = "{\n  " + ",\n  ".join(fields) + "\n}\n"
        self._info_sha256 = hashlib.sha256(text.encode("utf-8")).hexdigest()
        self.seal(is_last)
        write_atomically(self.path / INFO_FILE, text, is_durable)

    def before_write(self) -> None:
        """See `Watcher`."""
        self.journal.chain.check_place()

    def after_write(self) -> None:
        """See `Watcher`."""
        if self.statistics.num_unsealed >= SEAL_ROWS:
            self.seal()

    def seal(self, is_last: bool = False) -> None:
        """Say in the chain of seals what is on the disk now.

        Args:
            is_last: nothing comes after it but `run.json`.

        Raises:
            OSError: it could not be written; the next one says it too.
        """
        lines = {file: chain.state for file, chain in self._chains.items()}
        rows = (*self.statistics.unsealed(), *self.gradients.unsealed())
        self._seals.append(lines, rows, self._info_sha256, is_last)
        self.statistics.sealed()
        self.gradients.sealed()

    def write_layout(self, table: ParameterTable) -> None:
        """Say which parameters the columns of `norms` stand for from now on; starts new chunks.

        Raises:
            OSError: a file could not be written.
        """
        layout = {
            "first_chunk": self.statistics.reshape(len(table)),
            "first_gradients_chunk": self.gradients.reshape(len(table)),
            "parameters": table.names,
            "shapes": table.shapes,
            "dtypes": table.dtypes,
            "groups": table.groups,
        }
        self.info["layouts"] = [*self.info["layouts"], layout]
        self.write_info()

    def finish(self, status: str = "closed") -> None:
        """Write what is buffered, close the files and say how the run ended; the first status stays.

        The numbers of records, rows and seals go into `run.json`, so that what is cut off the end is missed later.

        Args:
            status: "closed", "stopped" or "failed".

        Raises:
            OSError: something could not be written; the files are closed all the same.
        """
        if self.info["status"] != "running":
            return
        self.info["status"] = status
        self.info["ended"] = _now()
        self.info["num_records"] = self.journal.num_records
        self.info["last_hash"] = self.journal.last_hash
        with contextlib.ExitStack() as last:  # runs from the end, and all of it, whatever fails
            last.callback(self._seals.close)
            last.callback(self.write_info, is_last=True)
            last.callback(self.journal.close)
            last.callback(self.probes.close)
            last.callback(self.replay.close)
            last.callback(self._close_rows, self.gradients, "num_gradients_rows")
            last.callback(self._close_rows, self.statistics, "num_rows")

    def abandon(self) -> None:
        """Close the files and write nothing more: the directory is gone, or another run's."""
        self.info["status"] = "failed"
        with contextlib.ExitStack() as last:
            for file in (self._seals, self.journal, self.probes, self.replay):
                last.callback(file.close)
            for rows in (self.gradients, self.statistics):
                last.callback(rows.abandon)

    def _close_rows(self, writer: ChunkWriter, name: str) -> None:
        writer.close()
        self.info[name] = writer.num_rows
        self.info[f"{name}_lost"] = writer.num_lost


def policy_hash(policy: Any) -> str:
    """Return the sha256 of a resolved policy's JSON text."""
    return hashlib.sha256(to_json(policy).encode("ascii")).hexdigest()


class _TakenError(Exception):
    """Another run is in the directory."""


def _claim(target: Path, undo: contextlib.ExitStack) -> None:
    """Make the directory ours or raise `_TakenError`; `undo` learns how to remove all that a run puts there."""
    missing = [folder for folder in (target, *target.parents) if not os.path.lexists(folder)]
    for folder in reversed(missing):
        undo.callback(_try, folder.rmdir)
    target.mkdir(parents=True, exist_ok=True)
    if (target / JOURNAL_FILE).exists() or (target / STATISTICS_FOLDER).exists():
        raise _TakenError
    try:  # O_EXCL: of two runs that start at once, one gets the directory
        os.close(os.open(target / INFO_FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        raise _TakenError from None
    undo.callback(_try, (target / INFO_FILE).unlink)
    undo.callback(_try, (target / STATISTICS_FOLDER).rmdir)
    undo.callback(_try, (target / JOURNAL_FILE).unlink)
    undo.callback(_try, (target / SEALS_FILE).unlink)


def _try(remove: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        remove()


def _facts(name: str | None, info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "v": INFO_VERSION,
        "run_id": uuid.uuid4().hex,
        "name": name,
        "status": "running",
        "created": _now(),
        "ended": None,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "is_sealed": True,
        "layouts": [],
        **info,
        **({"policy_sha256": policy_hash(info["policy"])} if "policy" in info else {}),
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def _check_name(name: str) -> None:
    files = {INFO_FILE, JOURNAL_FILE, SEALS_FILE, PROBES_FILE, REPLAY_FILE, LAST_GOOD_FILE}
    reserved = {".", "..", STATISTICS_FOLDER, GRADIENTS_FOLDER, *files}
    if not name or name in reserved or "/" in name or "\\" in name or not name.isprintable():
        raise RunDirectoryError(
            f"a guard's name must be usable as the name of a folder (printable, no '/' or '\\', not one of "
            f"{', '.join(sorted(reserved))}), got {name!r}"
        )


def _explain(target: Path, error: OSError) -> str:
    nearest = next((folder for folder in (target, *target.parents) if os.path.exists(folder)), target)
    if os.path.isfile(nearest):  # unlike methods of Path, without an error for names that are too long
        return f"run_dir {str(target)!r} cannot be made: {str(nearest)!r} is a file; give a directory"
    reason = error.strerror or error
    return f"run_dir {str(target)!r} cannot be written: {reason}; give a directory that this process may write to"
