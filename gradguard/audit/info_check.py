"""Whether `run.json`, with the policy and the parameters, is as it was written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradguard.audit.locate import MAX_INFO_BYTES
from gradguard.audit.problem import Problem
from gradguard.audit.regular_file import read_bounded
from gradguard.audit.seals import Seals
from gradguard.record.directory import INFO_FILE, policy_hash


def is_info_proven(path: Path, seals: Seals) -> bool:
    """Return whether the file is as the last seal says that is vouched for."""
    return [_digest(path)] == [seal.info for seal in seals.vouched[-1:]]


def check_info(path: Path, info: dict[str, Any], seals: Seals) -> Iterator[Problem]:
    """Compare the file with what was sealed just before it was written.

    Args:
        path: the run directory.
        info: what the file says.
        seals: of the run.
    """
    digest = _digest(path)
    if digest in seals.infos[-1:]:
        return
    expected, num_seals = info.get("num_seals"), len(seals.hashes)
    if isinstance(expected, int) and expected > num_seals and not seals.is_closed:
        message = f"tells of {expected:,} seals, and there are {num_seals:,}: seals were cut off, or it was edited"
        yield Problem(kind="cut_off", file=INFO_FILE, message=message)
    elif digest in seals.infos[-2:-1]:
        message = "the process ended just before its last change was written (or an older copy was put back)"
        yield Problem(kind="torn", file=INFO_FILE, message=message)
    else:
        message = "not as it was written: it matches no seal"
        yield Problem(kind="changed", file=INFO_FILE, message=message)


def check_policy(attached: dict[str, Any], info: dict[str, Any]) -> Iterator[Problem]:
    """Compare the policy with its hash, which the first event sealed into the journal.

    Args:
        attached: the data of that event.
        info: what `run.json` says.
    """
    sealed = attached.get("policy_sha256")
    if sealed is not None and sealed != policy_hash(info.get("policy")):
        yield Problem(kind="changed", file=INFO_FILE, message="the policy is not the one that the run started with")


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bounded(path / INFO_FILE, MAX_INFO_BYTES)).hexdigest()
