"""Lower (or raise) the learning rate for a while, on top of whatever schedule is in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.optimizer.aimed_factor import Factor, resolve_factor
from gradguard.optimizer.group_factor import LEARNING_RATE, Cut, GroupFactor, known_factor
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class ScaleLR(Remedy):
    """Multiply the learning rate by a factor, for good or with a recovery over some steps.

    Args:
        factor: > 0; several cuts multiply. {aim_at: x} is the factor, between `at_least` and `at_most`, that brings the
            statistic of the finding to x, if it is proportional to the learning rate, as the update ratio is; not when
            the finding is a consequence of another.
        recover_steps: steps over which the factor returns to 1 along a straight line in ln(lr); 0 means never.
        min_factor: the product of all cuts never goes below this, in (0, 1].

    With a rule for some parameters, the param groups that hold one of them are scaled.
    """

    name = "scale_lr"
    kind = "optimizer"
    rank = 10
    timing = "late"
    what = "The guard's own factor on the learning rate; the scheduler goes on untouched underneath."
    computed = "lr used = scheduled lr x product of factor^(1 - t/recover_steps), t steps after each cut."
    source = "AdaLRLion in llm-foundry (temporary backoff); OPT-175B and GLM-130B training logs (halving after spikes)"

    factor: Factor
    recover_steps: int = Field(default=0, ge=0)
    min_factor: float = Field(default=1e-4, gt=0, le=1)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`.

        Raises:
            Unavailable: there is no learning rate, or nothing to aim from.
        """
        scale = resolve_factor(self.factor, finding)
        if scale is None:
            raise Unavailable(
                "the learning rate cannot be aimed by this finding: it follows another, or has no value above 0"
            )
        if not all("lr" in group for group in target.optimizer.param_groups):
            raise Unavailable("the optimizer's param groups have no learning rate")
        effect = known_factor(target.effects, LEARNING_RATE, "lr")
        step = target.stats.step
        groups = None if rows is None else sorted({target.table.groups[row] for row in rows})
        index = groups[0] if groups else 0
        old = effect.factor(index, step)
        effect.cuts.append(Cut(scale, step, self.recover_steps, groups))
        effect.floor = max(effect.floor, self.min_factor)
        new = effect.factor(index, step)
        rate = float(target.optimizer.param_groups[index]["lr"])
        recovery = f", back over {self.recover_steps} steps" if self.recover_steps else ""
        return Change(
            summary=f"learning rate {short(rate * old)} -> {short(rate * new)}{recovery}",
            before={"lr": rate * old, "factor": old},
            after={"lr": rate * new, "factor": new, "recover_steps": self.recover_steps},
        )

    @classmethod
    def restore_effect(cls, state: dict[str, Any]) -> GroupFactor:
        """Return the effect that a saved state describes."""
        return GroupFactor.from_state_dict(cls.name, "lr", state)
