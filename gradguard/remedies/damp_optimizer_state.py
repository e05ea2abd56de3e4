"""Make the optimizer remember less of where it was heading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.optimizer.group_factor import LEARNING_RATE, Cut, known_factor
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target

START = 0.01  # factor on the learning rate with which a re-warm begins


@REMEDIES.register
class DampOptimizerState(Remedy):
    """Multiply the optimizer's first moments by a factor, or forget its state and re-warm the learning rate.

    Args:
        factor: on the first moments, in [0, 1]; not used with `reset`.
        reset: forget everything that the optimizer knows of the parameters.
        rewarm_steps: of a reset: steps over which the learning rate comes back from a hundredth of itself; fewer than
            5/(1 - beta2), which is what 0 stands for, are raised to that.

    A reset is no cure of its own: without the re-warm the next updates have the full size of the learning rate in every
    entry. With a rule for some parameters only these are forgotten; the learning rate of their param groups re-warms.
    """

    name = "damp_optimizer_state"
    kind = "optimizer"
    rank = 15
    timing = "late"
    what = "Momentum that a bad batch has left is taken out of the optimizer; the weights stay."
    computed = (
        "moment *= factor for exp_avg, momentum_buffer and their like. With reset: the whole state is dropped, and the "
        "learning rate starts at 0.01 of itself and comes back over rewarm_steps, along a straight line in ln(lr)."
    )
    source = "SPAM (Huang et al. 2025) resets momentum; BLOOM-104B's log shows what a full reset without warm-up does"

    factor: float = Field(default=0.1, ge=0, le=1)
    reset: bool = False
    rewarm_steps: int = Field(default=0, ge=0)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`.

        Raises:
            Unavailable: the optimizer keeps nothing of the kind for these parameters, or has no learning rate.
        """
        from gradguard.optimizer import optimizer_state

        params = [target.params[row] for row in (range(len(target.params)) if rows is None else rows)]
        if self.reset:
            return self._forget(target, params, rows)
        count = optimizer_state.damp_first_moments(target.optimizer, params, self.factor)
        if not count:
            kind = type(target.optimizer).__name__
            raise Unavailable(f"{kind} keeps no first moments of these parameters, or has not taken a step yet")
        return Change(
            summary=f"first moments of {count} parameters times {self.factor:g}",
            before={"factor": 1.0},
            after={"factor": self.factor, "parameters": count},
        )

    def _forget(self, target: Target, params: Sequence[Any], rows: Sequence[int] | None) -> Change:
        from gradguard.optimizer import optimizer_state

        optimizer = target.optimizer
        if not all("lr" in group for group in optimizer.param_groups):
            raise Unavailable("the optimizer's param groups have no learning rate that could re-warm")
        steps = max(self.rewarm_steps, optimizer_state.rewarm_steps(optimizer, params))
        count = optimizer_state.reset_state(optimizer, params)
        if not count:
            raise Unavailable("the optimizer knows nothing of these parameters yet")
        groups = None if rows is None else sorted({target.table.groups[row] for row in rows})
        effect = known_factor(target.effects, LEARNING_RATE, "lr")
        effect.cuts.append(Cut(START, target.stats.step, steps, groups))
        return Change(
            summary=f"optimizer state of {count} parameters forgotten, learning rate re-warms over {steps} steps",
            before={"parameters_with_state": count},
            after={"parameters_with_state": 0, "lr_factor": START, "rewarm_steps": steps},
        )
