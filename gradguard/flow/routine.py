"""The rules for every step, such as a fixed limit on the gradient norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gradguard.flow.target import Target
from gradguard.functional import clip_coefficient
from gradguard.policy.forms import Always
from gradguard.policy.schema import Policy


class Routine:
    """Applies the rules with `when: always`; one that fails is switched off.

    Args:
        policy: its rules; none are applied in mode "observe".
        rows_of: the parameters of each rule, None for all.
        on_fault: called with (what failed, error) when a remedy raises.
    """

    def __init__(
        self,
        policy: Policy,
        rows_of: Mapping[str, Sequence[int] | None],
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        is_enforcing = policy.mode == "enforce"
        self.rules = [rule for rule in policy.rules if isinstance(rule.when, Always)] if is_enforcing else []
        self.rows_of = rows_of
        self._on_fault = on_fault

    def apply(self, target: Target) -> None:
        """Apply the rules one by one and note the norms that they leave, for what comes after."""
        for rule in tuple(self.rules):
            try:
                for remedy in rule.do:
                    remedy.apply(target, None, self.rows_of[rule.name])
            except Exception as error:
                self.rules.remove(rule)
                self._on_fault(f"remedy {remedy.name!r}", error)

    def apply_alone(self, target: Target) -> None:
        """Apply the rules at a step at which nothing else is done: nobody asks for the norms that they leave."""
        factor = self._common_factor(target)
        if factor is None:
            measured = target.stats.measured()
            self.apply(target)
            target.stats.put_back(measured)
        elif factor < 1.0:
            target.multiply_all(factor)

    def idle_below(self, target: Target) -> float:
        """Return the global norm up to which the rules surely change nothing, at the steps to come as well.

        Infinite without rules; 0 when it is not known: a limit that follows the run, or something else than a limit.
        """
        lowest = math.inf
        for rule in self.rules:
            for remedy in rule.do:
                limit = remedy.device_limit(target.stats, True) if rule.parameters is None else None
                if limit is None or remedy.windows() or remedy.tracked(target.table, None):
                    return 0.0
                lowest = min(lowest, limit - 2e-6 * max(limit, 1.0))  # `clip_coefficient` adds 1e-6
        return max(lowest, 0.0)

    def _common_factor(self, target: Target) -> float | None:
        """Return what the rules come to if all are limits on the global norm, else None."""
        norm, product = target.stats.global_norm, 1.0
        for rule in self.rules:
            for remedy in rule.do:
                limit = remedy.device_limit(target.stats, True) if rule.parameters is None else None
                if limit is None:
                    return None
                factor = clip_coefficient(norm, limit)
                norm *= factor
                product *= factor
        return product
