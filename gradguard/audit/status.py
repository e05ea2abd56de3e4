"""How a run ended, as far as that can be told from here."""

from __future__ import annotations

from typing import Any

from gradguard.audit.process import liveness


def status_of(info: dict[str, Any]) -> str:
    """Return "closed", "stopped", "failed", "running", or "interrupted" when the process died without closing.

    Args:
        info: what `run.json` says.
    """
    status = str(info.get("status", "unknown"))
    return "interrupted" if status == "running" and liveness(info) == "gone" else status
