"""The exception tree: everything gradguard raises on purpose.

GradguardError
  |- AttachError          attach() was refused; nothing was changed
  |- UsageError           a call does not fit the guard's state (observe of a vector, use after close)
  |- PolicyError          a policy is missing or has mistakes; `.problems` lists every one with its place
  |- RunDirectoryError    a run directory cannot be created or written
  |- RecordError          a record cannot be read
  |- PreflightFailed      PreflightReport.raise_for_findings found something; `.findings` says what
  `- TrainingStopped      the `stop` remedy fired; `.finding` says why, everything is on disk

All but `PreflightFailed` and `TrainingStopped` are ValueErrors too, so code that guards against bad arguments catches
them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gradguard.checklist.finding import PreflightFinding
    from gradguard.records import Finding


class GradguardError(Exception):
    """Base of every error that gradguard raises on purpose."""


class AttachError(GradguardError, ValueError):
    """The guard could not be attached; model and optimizer are as they were."""


class UsageError(GradguardError, ValueError):
    """A call does not fit what the guard expects; nothing was changed."""


class RunDirectoryError(GradguardError, ValueError):
    """A run directory cannot be created or written."""


class RecordError(GradguardError, ValueError):
    """A record on disk cannot be read as one."""


class PolicyError(GradguardError, ValueError):
    """A policy has mistakes, all of them listed.

    Args:
        problems: one line each, `place: what is wrong`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[PolicyError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class PreflightFailed(GradguardError, AssertionError):
    """A pre-flight found something; an AssertionError, so that test runners show it as a failure.

    Args:
        message: the report as text.
        findings: those that count.
    """

    def __init__(self, message: str, findings: Sequence[PreflightFinding] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(message)


class TrainingStopped(GradguardError, RuntimeError):
    """The policy's `stop` remedy fired: training should end here.

    The record is complete on disk before this is raised, and the weights are as the last accepted step left them.

    Args:
        message: one sentence for the person who reads the traceback.
        finding: the finding that fired the rule, or None when no finding was involved.
    """

    def __init__(self, message: str, finding: Finding | None = None) -> None:
        self.finding = finding
        super().__init__(message)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest known name, else the list of known names.

    Example:
        >>> did_you_mean("clip_nrom", ["clip_norm", "stop"])
        "; did you mean 'clip_norm'?"
        >>> did_you_mean("zzz", ["clip_norm", "stop"])
        '; known: clip_norm, stop'
    """
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(options)}" if options else "; none are known"
