"""Feeds a policy's diagnoses with numbers instead of gradients, by the contract of the monitor and the pipeline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reference import FLOAT32_MAX

from gradguard.evidence.stats import ABSENT, ParameterTable, StepStats
from gradguard.flow.judgement import Judgement
from gradguard.policy.schema import Policy
from gradguard.records import Finding


def make_table(num_parameters: int, shape: tuple[int, ...] = (2, 2)) -> ParameterTable:
    names = [f"p{index}" for index in range(num_parameters)]
    return ParameterTable(names, [shape] * num_parameters, ["float32"] * num_parameters, [0] * num_parameters)


def fill(stats: StepStats, norms: Sequence[float | None]) -> None:
    """Write gradient norms into `stats` as the monitor would.

    Args:
        stats: what is written to.
        norms: one a parameter; None without a gradient, NaN or inf for one with such an entry, a number beyond float32
            for finite entries with such a norm.
    """
    stats.nonfinite = {
        row: (int(math.isnan(norm)), int(math.isinf(norm)))
        for row, norm in enumerate(norms)
        if norm is not None and not math.isfinite(norm)
    }
    stats.finite = not stats.nonfinite
    present = [norm for norm in norms if norm is not None]
    stats.overflowed = tuple(i for i, norm in enumerate(norms) if norm is not None and FLOAT32_MAX < norm < math.inf)
    stats.norms[:] = [
        ABSENT if norm is None else norm if not norm < math.inf else min(norm, FLOAT32_MAX) for norm in norms
    ]
    has_nan = any(math.isnan(norm) for norm in present)
    stats.global_norm = math.nan if has_nan else math.hypot(*present)
    stats.levels[0] = stats.global_norm if not stats.finite else min(stats.global_norm, FLOAT32_MAX)


class Feed:
    """A policy's diagnoses over a history of numbers.

    Args:
        rules: as in a policy file.
        num_parameters: P.
        shape: of every parameter.
    """

    def __init__(
        self, *rules: dict, num_parameters: int = 3, shape: tuple[int, ...] = (2, 2), horizon: int = 50
    ) -> None:
        self.policy = Policy.model_validate({"rules": list(rules), "sinks": [], "horizon": horizon})
        self.faults: list[str] = []
        self.table = make_table(num_parameters, shape)
        self.stats = StepStats(num_parameters)
        self.stats.step = -1
        self.judgement = self.fresh_judgement()

    def fresh_judgement(self) -> Judgement:
        return Judgement(
            self.policy, self.table, self.policy.horizon, lambda what, error: self.faults.append(repr(error))
        )

    def step(
        self, norms: Sequence[float | None] | float = 1.0, loss: float | None = None, **fields: object
    ) -> list[Finding]:
        """Return what is found at the next step, which is then learned from.

        Args:
            norms: one a parameter, or the same for all.
            loss: None when it was not observed.
            fields: further fields of `StepStats`.
        """
        stats = self.stats
        stats.step += 1
        stats.has_loss = loss is not None
        stats.loss = math.nan if loss is None else loss
        for name, value in fields.items():
            setattr(stats, name, value)
        fill(stats, [norms] * len(self.table) if isinstance(norms, (int, float)) else norms)
        found = self.judgement.judge(stats)
        if stats.finite and not stats.found_inf:
            self.judgement.learn(stats.levels.copy(), stats.loss, stats.has_loss)
        assert not self.faults, self.faults
        return [finding for _, finding in found]

    def repeat(
        self, times: int, norms: Sequence[float | None] | float = 1.0, loss: float | None = None
    ) -> list[Finding]:
        """Return what is found in so many equal steps."""
        return [finding for _ in range(times) for finding in self.step(norms, loss)]


def diagnose(when: object, **options: object) -> Feed:
    """Return a feed for one rule that looks at everything."""
    return Feed({"name": "rule", "when": when, "do": "notify"}, **options)  # type: ignore[arg-type]
