"""A limit on a gradient norm: a number, or one that follows the run."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Discriminator, Field, Tag

from gradguard.limits.adagc import AdaGC
from gradguard.limits.norm_sets import Rows, WideArray
from gradguard.limits.quantile import Quantile
from gradguard.limits.tracked import Limit, TrackedLimit
from gradguard.limits.windowed import MedianTimes, Percentile
from gradguard.limits.zscore import ZScore
from gradguard.records import Finding


if TYPE_CHECKING:
    from gradguard.evidence.stats import StepStats


NO_BASELINE = "no_baseline"  # in a finding's evidence: the rolling median is no measure of what is normal
SAFE_UPDATE = 0.05  # SGD update over weights, norms; healthy set-ups stay below 0.2 even in their first steps
KINDS = {"median_times": MedianTimes, "percentile": Percentile, "quantile": Quantile, "zscore": ZScore, "adagc": AdaGC}
NUMBER = "number"
WindowLimit = MedianTimes | Percentile
AnyLimit = WindowLimit | Quantile | ZScore | AdaGC


def _kind_of(value: Any) -> str | None:
    """Return which member of the union a value is meant to be, by the key that only that one has."""
    if isinstance(value, Limit):
        return type(value).__name__
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)) or (isinstance(value, str) and _is_number(value)):
        return NUMBER
    if not isinstance(value, dict):
        return None
    key = next((key for key in value if key in KINDS), None)
    if key is None:
        near = [name for key in value for name in difflib.get_close_matches(str(key), KINDS, n=1)]
        key = near[0] if near else None
    return KINDS[key].__name__ if key is not None else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_Number = Annotated[float, Field(gt=0, allow_inf_nan=False), Tag(NUMBER)]
LevelLimit = Annotated[
    _Number | Annotated[MedianTimes, Tag("MedianTimes")] | Annotated[Percentile, Tag("Percentile")],
    Discriminator(
        _kind_of,
        custom_error_type="unknown_limit",
        custom_error_message="should be a number or a mapping {median_times: ...} or {percentile: ...}",
    ),
]
NormLimit = Annotated[
    _Number
    | Annotated[MedianTimes, Tag("MedianTimes")]
    | Annotated[Percentile, Tag("Percentile")]
    | Annotated[Quantile, Tag("Quantile")]
    | Annotated[ZScore, Tag("ZScore")]
    | Annotated[AdaGC, Tag("AdaGC")],
    Discriminator(
        _kind_of,
        custom_error_type="unknown_limit",
        custom_error_message=f"should be a number or a mapping {', '.join(f'{{{key}: ...}}' for key in KINDS)}",
    ),
]


def limit_windows(limit: float | AnyLimit) -> Sequence[int]:
    """Return the sizes of the rolling windows that a limit reads."""
    return (limit.window,) if isinstance(limit, (MedianTimes, Percentile)) else ()


def has_baseline(finding: Finding | None) -> bool:
    """Return whether the run's own level is a measure of what is normal, as far as a finding says."""
    return finding is None or NO_BASELINE not in finding.evidence


def known_limits(limit: float | AnyLimit, stats: StepStats, sets: Sequence[Rows], norms: WideArray) -> WideArray:
    """Return (n,) limits for the norms of sets of parameters at this step, NaN where the run has not shown enough.

    Args:
        limit: of a policy.
        stats: of this step.
        sets: of parameters.
        norms: (n,) theirs; a limit may depend on the norm that it is for.
    """
    if isinstance(limit, TrackedLimit):
        return stats.trackers[limit].limits(sets, norms, stats.global_norm)
    if isinstance(limit, (MedianTimes, Percentile)):
        return limit.of(stats.windows[limit.window], sets)
    return np.full(len(sets), limit)


def resolve_limits(
    limit: float | AnyLimit, stats: StepStats, sets: Sequence[Rows], norms: WideArray, has_baseline: bool = True
) -> WideArray:
    """Return (n,) limits as numbers > 0; see `known_limits`. Where nothing is known yet the limit's fallback stands in.

    Args:
        limit: of a policy.
        stats: of this step.
        sets: of parameters.
        norms: (n,) theirs.
        has_baseline: the run's own level is a measure of what is normal.
    """
    known = known_limits(limit, stats, sets, norms)
    if not isinstance(limit, Limit) or (has_baseline and not np.isnan(known).any()):
        return known
    reach = SAFE_UPDATE * stats.sgd_reach / stats.lr if stats.lr > 0 else math.inf
    fallback = reach if reach < math.inf else limit.fallback
    return np.where(known > 0.0, known, fallback) if has_baseline else np.full(len(sets), fallback)


def resolve_limit(limit: float | AnyLimit, stats: StepStats, row: int, has_baseline: bool = True) -> float:
    """Return a limit as a number, for one row of `stats.levels` (0 is the global norm) at this step."""
    if isinstance(limit, (int, float)):
        return limit
    norms = np.array([stats.global_norm if row == 0 else stats.norm(row - 1)])
    return float(resolve_limits(limit, stats, [None if row == 0 else (row - 1,)], norms, has_baseline)[0])
