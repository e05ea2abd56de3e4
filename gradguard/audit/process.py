"""Whether the process that records a run is still there, as far as that can be told from this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal


Liveness = Literal["alive", "gone", "unknown"]
CLOCK_SLACK_SEC = 600.0  # by how much clocks may have been set since the run began
PROC = Path("/proc")


def liveness(info: Mapping[str, Any]) -> Liveness:
    """Return whether the process named in `run.json` lives: "alive", "gone", or "unknown" from another machine.

    A process that has ended and was not waited for is gone, and so is one whose number was given to a younger process
    (both are told on Linux only).

    Args:
        info: what `run.json` says; "host", "pid" and "created" are looked at.

    Example:
        >>> liveness({"host": socket.gethostname(), "pid": os.getpid()}), liveness({"host": "elsewhere", "pid": 1})
        ('alive', 'unknown')
    """
    if os.name != "posix" or info.get("host") != socket.gethostname():
        return "unknown"
    try:
        pid = int(info["pid"])
        if pid <= 0:  # a group of processes, not one
            return "unknown"
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass  # there, and somebody else's
    except (OSError, OverflowError, KeyError, TypeError, ValueError):
        return "unknown"
    return "gone" if _has_ended(pid) or _is_younger(pid, info.get("created")) else "alive"


def _fields(pid: int) -> list[str]:
    """Return what `/proc` says about a process from its state on; nothing where there is no `/proc`."""
    try:
        return (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _has_ended(pid: int) -> bool:
    return _fields(pid)[:1] in (["Z"], ["X"])


def _is_younger(pid: int, created: Any) -> bool:
    """Return whether the process began well after the run did, so that it cannot be the one that records it."""
    try:
        ticks = int(_fields(pid)[19])
        booted = next(
            float(line.split()[1]) for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime ")
        )
        began = booted + ticks / os.sysconf("SC_CLK_TCK")
        return began > datetime.fromisoformat(created).timestamp() + CLOCK_SLACK_SEC
    except (IndexError, OSError, StopIteration, TypeError, ValueError):
        return False
