"""A limit on a gradient norm: a number, or a multiple of the run's own rolling median."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from gradguard.records import Finding


if TYPE_CHECKING:
    from gradguard.stats import StepStats


NO_BASELINE = "no_baseline"  # in a finding's evidence: the rolling median is no measure of what is normal
FEWEST = 5  # norms that a rolling median must be made of
SAFE_UPDATE = 0.05  # SGD update over weights, norms; healthy set-ups stay below 0.2 even in their first steps


class MedianTimes(BaseModel):
    """A limit that follows the run: a multiple of the rolling median norm.

    Args:
        median_times: multiple, > 0.
        window: steps of the rolling median, >= 2.
        fallback: limit while there is no median yet, and for findings that were not made against one (a norm that
            overflowed, an update larger than the weights), > 0. With SGD the limit is then rather that whose update is
            5 % of the weights' norm, which knows the scale of the model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    median_times: float = Field(gt=0, allow_inf_nan=False)
    window: int = Field(default=50, ge=2)
    fallback: float = Field(default=1.0, gt=0, allow_inf_nan=False)


NormLimit = Annotated[float, Field(gt=0, allow_inf_nan=False)] | MedianTimes


def limit_windows(limit: float | MedianTimes) -> Sequence[int]:
    """Return the sizes of the rolling windows that a limit reads."""
    return (limit.window,) if isinstance(limit, MedianTimes) else ()


def has_baseline(finding: Finding | None) -> bool:
    """Return whether the rolling median is a measure of what is normal, as far as a finding says."""
    return finding is None or NO_BASELINE not in finding.evidence


def resolve_limit(limit: float | MedianTimes, stats: StepStats, row: int, has_baseline: bool = True) -> float:
    """Return a limit as a number, for one row of `stats.levels` (0 is the global norm) at this step."""
    if not isinstance(limit, MedianTimes):
        return limit
    window = stats.windows[limit.window]
    median = float(window.median[row])
    if not median > 0 or window.counts[row] < FEWEST or not has_baseline:
        reach = SAFE_UPDATE * stats.sgd_reach / stats.lr if stats.lr > 0 else math.inf
        return reach if reach < math.inf else limit.fallback
    return limit.median_times * median
