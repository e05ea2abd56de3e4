"""A limit of `clip_norm` put through dictated gradient norms, by the path that a training takes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from feed import Feed, fill

from gradguard.limits.norm_limit import resolve_limits
from gradguard.limits.norm_sets import divide, set_norms


class Following:
    """One limit for every step.

    Args:
        max_norm: as in a policy file.
        num_parameters: P.
        scope: "global", or "per_parameter".
    """

    def __init__(self, max_norm: Any, num_parameters: int = 1, scope: str = "global") -> None:
        remedy = {"clip_norm": {"max_norm": copy.deepcopy(max_norm), "scope": scope}}
        self.feed = Feed({"when": "always", "do": remedy}, num_parameters=num_parameters)
        self.limit = self.feed.policy.rules[0].do[0].max_norm
        self.sets = divide(None, self.feed.table, scope)

    def limits(self, norms: Sequence[float | None]) -> np.ndarray:
        """Return (n,) limits for the norms that come next."""
        stats = self.feed.stats
        self.feed.judgement.lend(stats)
        fill(stats, norms)
        return resolve_limits(self.limit, stats, self.sets, set_norms(stats, self.sets))

    def step(self, norms: Sequence[float | None] | float) -> np.ndarray:
        """Take one step; return (n,) what the sets' gradients are multiplied by."""
        norms = [norms] * len(self.feed.table) if isinstance(norms, (int, float)) else norms
        limits = self.limits(norms)
        measured = set_norms(self.feed.stats, self.sets)
        factors = np.where(np.isfinite(measured), np.minimum(1.0, limits / (np.maximum(measured, 0.0) + 1e-6)), 1.0)
        self.feed.step(norms)
        return factors

    def run(self, series: Iterable[Sequence[float | None] | float]) -> np.ndarray:
        """Take a step for each entry; return (steps, n) factors."""
        return np.array([self.step(norms) for norms in series])

    def memory(self) -> str:
        """Return all that is remembered of the norms, but for the slots of rolling windows."""
        return repr([tracker.state_dict() for tracker in self.feed.judgement.trackers.values()])


def noisy(level: float, noise: float, count: int, seed: int = 0) -> list[float]:
    """Return positive norms about a level, with a coefficient of variation of about `noise`."""
    random = np.random.default_rng(seed)
    return (level * np.exp(noise * random.standard_normal(count))).tolist()
