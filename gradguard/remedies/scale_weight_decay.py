"""Weaken (or strengthen) the weight decay for a while, on top of what the user set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.optimizer.aimed_factor import AimAt, resolve_factor
from gradguard.optimizer.group_factor import Cut, GroupFactor, known_factor
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target

OPTION = "weight_decay"


@REMEDIES.register
class ScaleWeightDecay(Remedy):
    """Multiply the weight decay by a factor, for good or with a recovery over some steps.

    Args:
        factor: >= 0; several cuts multiply, and 0 switches the decay off. {aim_at: x} is the factor, between `at_least`
            and `at_most`, that brings the statistic of the finding to x, if it is proportional to the decay.
        recover_steps: steps over which the factor returns to 1 along a straight line in its logarithm (in its value
            when it is 0); 0 means never.

    With a rule for some parameters, the param groups that hold one of them are scaled.
    """

    name = "scale_weight_decay"
    kind = "optimizer"
    rank = 10
    timing = "late"
    what = "The guard's own factor on the weight decay; what the user set stays underneath."
    computed = "decay used = weight_decay x product of factor^(1 - t/recover_steps), t steps after each cut."
    source = "Krogh and Hertz 1992 for the decay; OPT-175B's log (Zhang et al. 2022) changes it in mid-run"

    factor: Annotated[float, Field(ge=0)] | AimAt
    recover_steps: int = Field(default=0, ge=0)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`.

        Raises:
            Unavailable: none of the param groups decays its weights, or the finding is none to aim by.
        """
        scale = resolve_factor(self.factor, finding)
        if scale is None:
            raise Unavailable(
                "the weight decay cannot be aimed by this finding: it follows another, or has no value above 0"
            )
        every = target.optimizer.param_groups
        groups = range(len(every)) if rows is None else sorted({target.table.groups[row] for row in rows})
        decaying = [index for index in groups if float(every[index].get(OPTION, 0.0)) != 0.0]
        if not decaying:
            raise Unavailable("the optimizer decays none of these weights: there is nothing to scale")
        effect = known_factor(target.effects, self.name, OPTION)
        step, index = target.stats.step, decaying[0]
        old = effect.factor(index, step)
        effect.cuts.append(Cut(scale, step, self.recover_steps, None if rows is None else list(groups)))
        new = effect.factor(index, step)
        decay = float(every[index][OPTION])
        recovery = f", back over {self.recover_steps} steps" if self.recover_steps else ""
        return Change(
            summary=f"weight decay {short(decay * old)} -> {short(decay * new)}{recovery}",
            before={OPTION: decay * old, "factor": old},
            after={OPTION: decay * new, "factor": new, "recover_steps": self.recover_steps},
        )

    @classmethod
    def restore_effect(cls, state: dict[str, Any]) -> GroupFactor:
        """Return the effect that a saved state describes."""
        return GroupFactor.from_state_dict(cls.name, OPTION, state)
