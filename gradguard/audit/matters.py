"""What was found in a run, a line for each diagnosis: where, what it means, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gradguard.audit.advice import advice
from gradguard.audit.ending import STRETCH
from gradguard.audit.rate_jump import rate_jump
from gradguard.records import SEVERITIES, Finding, Frozen, Severity


class Matter(Frozen):
    """One diagnosis over a whole run.

    Args:
        diagnosis: its name.
        severity: the gravest of it.
        count: steps at which it was found at severity "warn" or above.
        first_step: the first of them.
        last_step: the last.
        spans: (first, last) steps of each time that it went on, with no more than `STRETCH` steps between findings.
        where: the layers that were named first, the worst first; empty for the run as a whole.
        more: how many were concerned beside these.
        message: what the first finding says.
        advice: what to do about it, "" when nothing is known.
    """

    diagnosis: str
    severity: Severity
    count: int
    first_step: int
    last_step: int
    spans: tuple[tuple[int, int], ...] = ()
    where: tuple[str, ...] = ()
    more: int = 0
    message: str = ""
    advice: str = ""


MOST_NAMED = 3


def matters(findings: Sequence[Finding], statistics: Mapping[str, npt.NDArray[np.generic]]) -> tuple[Matter, ...]:
    """Return what was found at severity "warn" or above, in the order in which it first came.

    Args:
        findings: of the run, in order.
        statistics: columns "step" and "lr" of its steps.
    """
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.severity != "info":
            found.setdefault(finding.diagnosis, []).append(finding)
    return tuple(_matter(members, statistics) for members in found.values())


def _matter(members: Sequence[Finding], statistics: Mapping[str, npt.NDArray[np.generic]]) -> Matter:
    first = members[0]
    named = next((finding for finding in members if finding.parameters), first)
    where = named.parameters[:MOST_NAMED]
    advised = next((finding for finding in members if finding.advice), first)
    steps, rates = statistics["step"].astype(np.int64), statistics["lr"].astype(np.float64)
    return Matter(
        diagnosis=first.diagnosis,
        severity=max((finding.severity for finding in members), key=SEVERITIES.index),
        count=len({finding.step for finding in members}),
        first_step=first.step,
        last_step=members[-1].step,
        spans=_spans([finding.step for finding in members]),
        where=where,
        more=max(0, max(named.num_parameters, len(named.parameters)) - len(where)),
        message=first.message,
        advice=advice(advised, rate_jump(steps, rates, first.step)),
    )


def _spans(steps: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return steps that are near each other as (first, last).

    Example:
        >>> _spans([225, 337, 338, 345])
        ((225, 225), (337, 345))
    """
    spans: list[tuple[int, int]] = []
    for step in sorted(steps):
        if spans and step - spans[-1][1] <= STRETCH:
            spans[-1] = (spans[-1][0], step)
        else:
            spans.append((step, step))
    return tuple(spans)
