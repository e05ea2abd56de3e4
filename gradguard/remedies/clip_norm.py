"""Bring the gradient norm down to a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import model_validator

from gradguard.contracts import REMEDIES, Remedy
from gradguard.limits.adagc import AdaGC
from gradguard.limits.norm_limit import NormLimit, has_baseline, limit_windows, resolve_limit, resolve_limits
from gradguard.limits.norm_sets import Rows, WideArray, divide, set_norms
from gradguard.limits.tracked import TrackedLimit
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.evidence.stats import ParameterTable, StepStats
    from gradguard.flow.target import Target

Scope = Literal["global", "group", "per_parameter"]


@REMEDIES.register
class ClipNorm(Remedy):
    """Scale gradients down so that their L2 norm is at most a limit; smaller ones are left alone.

    Args:
        max_norm: a number > 0, or a limit that follows the norms so far: {median_times: x}, x times their rolling
            median; {percentile: p}, over a window; {quantile: q}, the same without one; {zscore: z}, for what is z
            standard deviations above their moving average; {adagc: x}, x times each parameter's own moving average.
        scope: "global" clips all gradients together by one factor, "group" those of each param group, "per_parameter"
            each by its own norm, "auto" clips what the finding named: the global norm, or just the parameters that
            stood out. With `adagc` it is per parameter.

    A limit that follows the run is made of the norms of what it limits, such as those of the rule's `parameters`
    together, before this step and before any remedy; until there are some its `fallback` holds.

    The factor is min(1, max_norm / (norm + 1e-6)), that of `torch.nn.utils.clip_grad_norm_`. A non-finite norm is never
    clipped: the factor would spread it to every parameter.
    """

    name = "clip_norm"
    kind = "gradient"
    rank = 40
    is_routine = True
    what = "The gradient keeps its direction and is shortened to a limit."
    computed = (
        "grad *= min(1, max_norm / (norm + 1e-6)), with the norm that was measured for this step; a limit that follows "
        "the run is made of the norms before this step, as they were before any remedy."
    )
    source = (
        "Pascanu et al. 2013; torch.nn.utils.clip_grad_norm_; percentile: Seetharaman et al. 2020 (AutoClip); "
        "quantile: Andrew et al. 2019; zscore: Kumar et al. 2025 (ZClip); adagc: Wang et al. 2025 (AdaGC)"
    )

    max_norm: NormLimit
    scope: Literal["auto", "global", "group", "per_parameter"] = "auto"

    @model_validator(mode="after")
    def _check_scope(self) -> ClipNorm:
        if isinstance(self.max_norm, AdaGC) and self.scope in ("global", "group"):
            raise ValueError(f"'adagc' is a limit for each parameter: with scope {self.scope!r} use another limit")
        return self

    def windows(self) -> Sequence[int]:
        """Return the window sizes that the limit reads."""
        return limit_windows(self.max_norm)

    def tracked(self, table: ParameterTable, rows: Rows) -> Sequence[tuple[TrackedLimit, Sequence[Rows]]]:
        """See `Remedy.tracked`."""
        if not isinstance(self.max_norm, TrackedLimit):
            return ()
        scope = self._scope(None)
        sets = divide(rows, table, scope)
        if self.scope == "auto" and scope == "global":
            sets += [rows for rows in divide(rows, table, "per_parameter") if rows not in sets]
        return [(self.max_norm, sets)]

    def device_limit(self, stats: StepStats, has_baseline: bool) -> float | None:
        """See `Remedy.device_limit`."""
        if self._scope(None) != "global":
            return None
        if isinstance(self.max_norm, TrackedLimit) and not self.max_norm.is_foreseeable:
            return None
        return resolve_limit(self.max_norm, stats, 0, has_baseline)

    def _scope(self, finding: Finding | None) -> Scope:
        if self.scope != "auto":
            return self.scope
        is_about_some = finding is not None and bool(finding.indices)
        return "per_parameter" if is_about_some or isinstance(self.max_norm, AdaGC) else "global"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """See `Remedy.apply`; with a finding about parameters only these are clipped."""
        stats = target.stats
        scope = self._scope(finding)
        sets = divide(None if rows is None else tuple(rows), target.table, scope)
        norms = set_norms(stats, sets)
        limits = resolve_limits(self.max_norm, stats, sets, norms, has_baseline(finding))
        is_finite = np.isfinite(norms)
        factors = np.ones(len(sets))
        factors[is_finite] = np.minimum(1.0, limits[is_finite] / (np.maximum(norms[is_finite], 0.0) + 1e-6))
        if not (factors < 1.0).any():
            return None
        if scope == "global" and rows is None:
            target.scale_all(float(factors[0]))
        else:
            cut = np.flatnonzero(factors < 1.0)
            target.scale({row: float(factors[i]) for i in cut for row in target.rows(sets[i])})
        return _told(scope, norms, factors, limits)


def _told(scope: Scope, norms: WideArray, factors: WideArray, limits: WideArray) -> Change:
    furthest = int(np.argmin(factors))
    factor, before = float(factors[furthest]), float(norms[furthest])
    after = {"norm": before * factor, "factor": factor}
    if scope == "global":
        summary = f"gradient norm {short(before)} -> {short(before * factor)}"
        after["max_norm"] = float(limits[furthest])
    else:
        kind = "parameters" if scope == "per_parameter" else "groups"
        after[kind] = int(np.count_nonzero(factors < 1.0))
        summary = f"{after[kind]} {kind} clipped, the furthest from norm {short(before)} to {short(before * factor)}"
    return Change(summary=summary, before={"norm": before}, after=after)
