"""How a run ended, as far as that can be told from here."""

from __future__ import annotations

import os
import socket
from typing import Any


def status_of(info: dict[str, Any]) -> str:
    """Return "closed", "stopped", "failed", "running", or "interrupted" when the process died without closing.

    Args:
        info: what `run.json` says.
    """
    status = str(info.get("status", "unknown"))
    return "interrupted" if status == "running" and not _may_be_alive(info) else status


def _may_be_alive(info: dict[str, Any]) -> bool:
    if os.name != "posix" or info.get("host") != socket.gethostname():
        return True  # not to be told from here
    try:
        pid = int(info["pid"])
        if pid <= 0:  # stands for whole groups of processes
            return True
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError, KeyError, TypeError, ValueError):
        return True
    return True
