"""gradguard keeps a PyTorch training run alive and honest.

Names are imported on first use (PEP 562): reading a record must not cost an import of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from gradguard import faults as faults
    from gradguard.attach import attach as attach
    from gradguard.audit.read import Run as Run
    from gradguard.audit.read import read_run as read_run
    from gradguard.checklist.report import PreflightReport as PreflightReport
    from gradguard.checklist.run import preflight as preflight
    from gradguard.errors import AttachError as AttachError
    from gradguard.errors import GradguardError as GradguardError
    from gradguard.errors import PolicyError as PolicyError
    from gradguard.errors import PreflightFailed as PreflightFailed
    from gradguard.errors import RecordError as RecordError
    from gradguard.errors import RunDirectoryError as RunDirectoryError
    from gradguard.errors import TrainingStopped as TrainingStopped
    from gradguard.errors import UsageError as UsageError
    from gradguard.gradients.statistics import gradient_statistics as gradient_statistics
    from gradguard.guard import Guard as Guard
    from gradguard.policy.load import load_policy as load_policy
    from gradguard.policy.schema import Policy as Policy
    from gradguard.register import register_diagnosis as register_diagnosis
    from gradguard.register import register_remedy as register_remedy
    from gradguard.register import register_sink as register_sink

_HOMES = {
    "AttachError": "gradguard.errors",
    "GradguardError": "gradguard.errors",
    "Guard": "gradguard.guard",
    "Policy": "gradguard.policy.schema",
    "PolicyError": "gradguard.errors",
    "PreflightFailed": "gradguard.errors",
    "PreflightReport": "gradguard.checklist.report",
    "RecordError": "gradguard.errors",
    "Run": "gradguard.audit.read",
    "RunDirectoryError": "gradguard.errors",
    "TrainingStopped": "gradguard.errors",
    "UsageError": "gradguard.errors",
    "attach": "gradguard.attach",
    "faults": "",
    "gradient_statistics": "gradguard.gradients.statistics",
    "load_policy": "gradguard.policy.load",
    "preflight": "gradguard.checklist.run",
    "read_run": "gradguard.audit.read",
    "register_diagnosis": "gradguard.register",
    "register_remedy": "gradguard.register",
    "register_sink": "gradguard.register",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradguard' has no attribute {name!r}")
    home = _HOMES[name]
    value = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"gradguard.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
