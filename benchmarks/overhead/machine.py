"""The machine and the versions that the numbers belong to."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from gradguard.environment import describe_environment


def describe_machine() -> dict[str, str]:
    """Return versions, processor, cores and torch's threads."""
    return {
        **describe_environment(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
