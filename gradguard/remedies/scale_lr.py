"""Lower (or raise) the learning rate for a while, on top of whatever schedule is in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gradguard.aimed_factor import Factor, resolve_factor
from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.target import Target


class LearningRateFactor:
    """A factor on param groups' learning rates, put on just before torch's step and taken off just after.

    Schedulers therefore never see it, never undo it and never compound it.

    Args:
        cuts: [factor, step of the cut, recovery steps or 0, param groups or None for all].
        floor: the product of all cuts of a group counts as at least this.
    """

    remedy = "scale_lr"

    def __init__(self, cuts: list[list[Any]] | None = None, floor: float = 0.0) -> None:
        self.cuts = cuts or []
        self.floor = floor
        self._saved: list[tuple[dict[str, Any], Any, Any]] = []

    def factor(self, group: int, step: int) -> float:
        """Return the product of the cuts in force for a param group at a step.

        A cut with recovery over n steps is factor^(1 - t/n) t steps later: a straight line for ln(lr).
        """
        product = 1.0
        for factor, since, recover, groups in self.cuts:
            if groups is None or group in groups:
                product *= factor ** max(0.0, 1.0 - (step - since) / recover) if recover else factor
        return max(product, min(self.floor, 1.0)) if product < 1.0 else product

    def before_step(self, target: Target, step: int) -> None:
        """Scale the learning rates."""
        self.take_off(target)
        target.lr_factor = self.factor(0, step)
        for index, group in enumerate(target.optimizer.param_groups):
            factor = self.factor(index, step)
            if factor != 1.0:
                rate = group["lr"]
                group["lr"] = rate * factor
                self._saved.append((group, rate, group["lr"]))

    def on_gradients(self, target: Target, step: int) -> None:
        """Leave the gradients alone."""

    def goes_on(self, step: int) -> bool:
        """Return whether a cut is still in force; those that have recovered are forgotten."""
        self.cuts = [cut for cut in self.cuts if not cut[2] or step - cut[1] < cut[2]]
        return bool(self.cuts)

    def take_off(self, target: Target) -> None:
        """Put back the rates that `before_step` replaced, unless someone else has set them since."""
        for group, rate, scaled in self._saved:
            if group["lr"] is scaled or group["lr"] == scaled:
                group["lr"] = rate
        self._saved.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the cuts in force."""
        return {"cuts": [list(cut) for cut in self.cuts], "floor": self.floor}


@REMEDIES.register
class ScaleLR(Remedy):
    """Multiply the learning rate by a factor, for good or with a recovery over some steps.

    Args:
        factor: > 0; several cuts multiply. {aim_at: x} is the factor, between `at_least` and `at_most`, that brings the
            statistic of the finding to x, if it is proportional to the learning rate, as the update ratio is.
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
            raise Unavailable("the finding has no value above 0 from which the learning rate could be aimed")
        effect = target.effects.get(self.name)
        if not isinstance(effect, LearningRateFactor):
            effect = target.effects[self.name] = LearningRateFactor()
        step = target.stats.step
        if not all("lr" in group for group in target.optimizer.param_groups):
            raise Unavailable("the optimizer's param groups have no learning rate")
        groups = None if rows is None else sorted({target.table.groups[row] for row in rows})
        index = groups[0] if groups else 0
        old = effect.factor(index, step)
        effect.cuts.append([scale, step, self.recover_steps, groups])
        effect.floor = max(effect.floor, self.min_factor)
        new = effect.factor(index, step)
        rate = float(target.optimizer.param_groups[index]["lr"])
        recovery = f", back over {self.recover_steps} steps" if self.recover_steps else ""
        return Change(
            summary=f"learning rate {rate * old:.3g} -> {rate * new:.3g}{recovery}",
            before={"lr": rate * old, "factor": old},
            after={"lr": rate * new, "factor": new, "recover_steps": self.recover_steps},
        )

    @classmethod
    def restore_effect(cls, state: dict[str, Any]) -> LearningRateFactor:
        """Return the effect that a saved state describes."""
        return LearningRateFactor([list(cut) for cut in state["cuts"]], float(state["floor"]))
