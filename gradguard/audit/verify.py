"""Whether the files of a run are as they were written, and how far that can be told.

The journal and what probes saw are chains of lines; rows of statistics and gradients, `run.json` and the ends of those
chains are sealed in a chain of their own. Its last hash, the head, stands for the whole record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from gradguard.audit.chain_check import ChainCheck
from gradguard.audit.columns import open_statistics_chunks
from gradguard.audit.gradients import open_gradient_chunks
from gradguard.audit.info_check import check_info, check_policy, is_info_proven
from gradguard.audit.line import NewerVersionError
from gradguard.audit.locate import locate, read_info
from gradguard.audit.problem import Problem
from gradguard.audit.rows_check import RowsCheck
from gradguard.audit.seals import Published, Seals
from gradguard.audit.status import status_of
from gradguard.errors import RecordError
from gradguard.record.chain import first_link
from gradguard.record.directory import GRADIENTS_FOLDER, INFO_FILE, JOURNAL_FILE, STATISTICS_FOLDER
from gradguard.record.probes import PROBES_FILE
from gradguard.record.seals import SEALS_FILE
from gradguard.records import Frozen


Verdict = Literal["whole", "running", "torn", "incomplete", "cut_off", "changed"]
MIN_HEAD = 16  # digits of a head that are enough to tell it
KINDS = {"torn": "torn", "lost": "incomplete", "cut_off": "cut_off"}  # all other problems are changes
MAX_NAMES = 20  # of what is not proven


class Proof(Frozen):
    """How much of one file or folder is proven to be as it was written.

    Args:
        file: name below the run directory.
        unit: what is counted: "lines", "rows" or "file".
        count: how many there are.
        proven: how many of them match a seal; with a head, one that the head vouches for. What came after that seal is
            there and not proven. In a record without seals: the lines that match their own chain.
    """

    file: str
    unit: Literal["lines", "rows", "file"]
    count: int
    proven: int


class Verification(Frozen):
    """What checking a record found.

    Args:
        path: the run directory.
        verdict: "whole"; "running" (as written up to the last seal); "torn" (likewise, and then the process died);
            "incomplete" (the disk did not take all of it); "cut_off" (the end is missing, what is left is as written);
            "changed".
        status: see `Run.status`.
        head: the hash that stands for all that is sealed; None for a record without seals.
        published: what the head that was given stands for: "last" (this very record), "earlier" (what this record was
            then, it went on since), "unknown" (another record), or "" when none was given.
        proofs: how much is proven, file by file.
        unproven: what else lies in the directory, such as saved states, which are too large to be hashed while a
            training waits; `MAX_NAMES` names at most.
        problems: in the order of the files; empty when there are none.
    """

    path: str
    verdict: Verdict
    status: str
    head: str | None
    published: Published
    proofs: tuple[Proof, ...]
    unproven: tuple[str, ...]
    problems: tuple[Problem, ...]


def verify_run(path: str | os.PathLike[str], name: str | None = None) -> list[Problem]:
    """Check every file of a record and return the problems; see `check_run`."""
    return list(check_run(path, name).problems)


def check_run(path: str | os.PathLike[str], name: str | None = None, head: str | None = None) -> Verification:
    """Check every line and every row of a record.

    The hashes show that nothing was changed, removed, moved or added since, by accident or by someone who
    does not compute them anew. They are no signature: who may write to the directory can make a new record that is
    right in itself. A head that was kept elsewhere finds that out.

    Args:
        path: the run directory.
        name: which guard's record, when several guards recorded there.
        head: a head that was published, or its first 16 digits or more.

    Raises:
        RecordError: it is not a run directory, a newer gradguard wrote it, or `head` is none.
    """
    if head is not None and (len(head) < MIN_HEAD or not set(head.lower()) <= set("0123456789abcdef")):
        raise RecordError(f"a head has 64 hex digits, of which the first {MIN_HEAD} will do; got {head!r}")
    folder = locate(path, name)
    problems: list[Problem] = []
    try:
        info = read_info(folder)
    except NewerVersionError:
        raise
    except RecordError as error:
        if not os.path.isfile(folder / INFO_FILE) or not os.path.getsize(folder / INFO_FILE):
            raise
        info = {}
        message = f"not as it was written: {str(error).removeprefix(f'{folder / INFO_FILE}: ')}"
        problems.append(Problem(kind="changed", file=INFO_FILE, message=message))
    seals = Seals(folder, info.get("run_id"), head)
    has_seals = bool(info.get("is_sealed")) or bool(seals.hashes)
    if has_seals and not os.path.exists(folder / SEALS_FILE):
        problems.append(Problem(kind="missing", file=SEALS_FILE, message="the seals are missing"))
    problems += seals.problems
    proofs = []
    if info:
        found = list(check_info(folder, info, seals)) if seals.hashes else []
        problems += found
        is_proven = not found and is_info_proven(folder, seals)
        proofs.append(Proof(file=INFO_FILE, unit="file", count=1, proven=int(is_proven)))
    attached, num_resumed = _check_chains(folder, info, seals, has_seals, problems, proofs)
    if info:
        if not any(problem.file == INFO_FILE for problem in problems):
            problems += check_policy(attached, info)
        _check_rows(folder, info, seals if has_seals else None, num_resumed, problems, proofs)
    status = status_of(info)
    if status == "interrupted" and not any(problem.kind == "torn" for problem in problems):
        message = "the process ended without closing the record"
        problems.append(Problem(kind="torn", file=INFO_FILE, message=message))
    if seals.published == "unknown":
        message = "the head that was given is not in this record: it is another one, or was made anew as a whole"
        problems.append(Problem(kind="head", file=SEALS_FILE, message=message))
    return Verification(
        path=str(folder),
        verdict=_verdict(problems, status),
        status=status,
        head=seals.head,
        published=seals.published,
        proofs=tuple(proofs),
        unproven=_unproven(folder, {proof.file for proof in proofs}),
        problems=tuple(problems),
    )


def _verdict(problems: list[Problem], status: str) -> Verdict:
    found = {KINDS.get(problem.kind, "changed") for problem in problems}
    order: tuple[Verdict, ...] = ("changed", "cut_off", "incomplete", "torn")
    return next((verdict for verdict in order if verdict in found), "running" if status == "running" else "whole")


def _check_chains(
    folder: Path, info: dict[str, Any], seals: Seals, has_seals: bool, problems: list[Problem], proofs: list[Proof]
) -> tuple[dict[str, Any], int]:
    """Check the files of chained lines; return the data of the first event, and how often a state was loaded."""
    attached: dict[str, Any] | None = None
    num_resumed = 0
    for file, start in _chains(info, seals, has_seals):
        if not os.path.exists(folder / file):
            if file == JOURNAL_FILE:
                problems.append(Problem(kind="missing", file=file, message="the journal is missing"))
            elif seals.lines.get(file) and seals.lines[file][-1].lines:
                problems.append(Problem(kind="missing", file=file, message="the file is missing"))
            continue
        is_journal = file == JOURNAL_FILE
        check = ChainCheck(
            folder / file,
            start,
            seals.lines.get(file, ()),
            is_closed=seals.is_closed,
            vouched=seals.vouched_lines(file),
            is_numbered=is_journal,
        )
        for line in check.lines():
            if not is_journal or line.fields is None:
                continue
            try:
                line.record()
            except NewerVersionError:
                raise
            except RecordError as error:
                message = str(error).removeprefix(f"{line.place}: ")
                check.problems.append(Problem(kind="foreign", file=file, line=line.number, message=message))
            num_resumed += line.fields.get("event") == "resumed"
            if attached is None and line.fields.get("event") == "attached":
                data = line.fields.get("data")
                attached = data if isinstance(data, dict) else {}
        problems += check.problems
        if is_journal:
            problems += _check_end(check, info)
        proven = check.num_proven
        if not has_seals:
            damaged = {problem.line for problem in check.problems if problem.kind != "torn"}
            proven = max(0, check.num_lines - len(damaged))
        proofs.append(Proof(file=file, unit="lines", count=check.num_lines, proven=proven))
    return attached or {}, num_resumed


def _chains(info: Mapping[str, Any], seals: Seals, has_seals: bool) -> Iterator[tuple[str, str | None]]:
    """Yield the chained files of a run, and what the first line of each is chained to."""
    run_id = info.get("run_id")
    yield JOURNAL_FILE, None if run_id is None else first_link(run_id)
    if has_seals:
        for file in sorted({PROBES_FILE, *seals.lines} - {JOURNAL_FILE}):
            if file.isidentifier() or file.removesuffix(".jsonl").isidentifier():  # no way out of the directory
                yield file, None if run_id is None else first_link(f"{run_id} {file.removesuffix('.jsonl')}")


def _check_end(check: ChainCheck, info: Mapping[str, Any]) -> Iterator[Problem]:
    """Compare with what was noted when the run closed."""
    expected = info.get("num_records")
    last = check.last_hash or first_link(str(info.get("run_id")))
    if expected is not None and last != info.get("last_hash") and not check.problems:
        message = f"ends differently from when the run closed ({check.num_lines} records, then {expected})"
        yield Problem(kind="cut_off", file=JOURNAL_FILE, message=message)


def _check_rows(
    folder: Path,
    info: dict[str, Any],
    seals: Seals | None,
    num_resumed: int,
    problems: list[Problem],
    proofs: list[Proof],
) -> None:
    for name, open_chunks, count in (
        (STATISTICS_FOLDER, open_statistics_chunks, "num_rows"),
        (GRADIENTS_FOLDER, open_gradient_chunks, "num_gradients_rows"),
    ):
        chunks, unread = open_chunks(folder, info.get("layouts"))
        check = RowsCheck(folder, name, chunks, unread, seals)
        check.run(info, count, num_resumed)
        problems += check.problems
        if check.num_rows or check.problems:
            proofs.append(Proof(file=name, unit="rows", count=check.num_rows, proven=check.num_proven))


def _unproven(folder: Path, proven: set[str]) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        others = (entry.name for entry in entries if not os.path.exists(folder / entry.name / INFO_FILE))
        names = (name for name in others if name not in {SEALS_FILE, STATISTICS_FOLDER, GRADIENTS_FOLDER, *proven})
        return tuple(sorted(islice(names, MAX_NAMES)))
