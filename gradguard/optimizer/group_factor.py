"""A factor on one option of the optimizer's param groups, in force for torch's step alone, that recovers by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple


if TYPE_CHECKING:
    from gradguard.contracts import Effect
    from gradguard.flow.target import Target

LEARNING_RATE = "scale_lr"  # under which the effect on learning rates is kept: one alone, whoever adds to it


class Cut(NamedTuple):
    """One factor.

    Args:
        factor: >= 0.
        since: step from which it holds.
        recover_steps: over which it returns to 1; 0 for never.
        groups: indices of the param groups, None for all.
    """

    factor: float
    since: int
    recover_steps: int = 0
    groups: Sequence[int] | None = None

    def at(self, step: int) -> float:
        """Return what is in force at a step.

        It returns to 1 along a straight line in its logarithm, factor^(1 - t/n); one of 0, which has none, along one in
        its value.

        Example:
            >>> Cut(0.01, since=0, recover_steps=10).at(5), Cut(0.0, since=0, recover_steps=10).at(5)
            (0.1, 0.5)
        """
        if not self.recover_steps:
            return self.factor
        done = min(1.0, (step - self.since) / self.recover_steps)
        return done if self.factor == 0.0 else self.factor ** (1.0 - done)


class GroupFactor:
    """A factor on param groups' option, put on just before torch's step and taken off just after.

    Schedulers therefore never see it, never undo it and never compound it.

    Args:
        remedy: that leaves it in force.
        option: of the param groups, "lr" or "weight_decay"; groups without it are left alone.
        cuts: in force; they multiply.
        floor: a product below 1 counts as at least this.
    """

    def __init__(self, remedy: str, option: str, cuts: Sequence[Cut] = (), floor: float = 0.0) -> None:
        self.remedy = remedy
        self.option = option
        self.cuts = list(cuts)
        self.floor = floor
        self._saved: list[tuple[dict[str, Any], Any, Any]] = []

    def factor(self, group: int, step: int) -> float:
        """Return the product of the cuts in force for a param group at a step."""
        product = 1.0
        for cut in self.cuts:
            if cut.groups is None or group in cut.groups:
                product *= cut.at(step)
        return max(product, min(self.floor, 1.0)) if product < 1.0 else product

    def before_step(self, target: Target, step: int) -> None:
        """Scale the option."""
        self.take_off(target)
        if self.option == "lr":
            target.lr_factor = self.factor(0, step)
        for index, group in enumerate(target.optimizer.param_groups):
            factor = self.factor(index, step)
            if factor != 1.0 and self.option in group:
                value = group[self.option]
                group[self.option] = value * factor
                self._saved.append((group, value, group[self.option]))

    def on_gradients(self, target: Target, step: int) -> None:
        """Leave the gradients alone."""

    def goes_on(self, step: int) -> bool:
        """Return whether a cut is still in force; those that have recovered are forgotten."""
        self.cuts = [cut for cut in self.cuts if not cut.recover_steps or step - cut.since < cut.recover_steps]
        return bool(self.cuts)

    def take_off(self, target: Target) -> None:
        """Put back the values that `before_step` replaced, unless someone else has set them since."""
        for group, value, scaled in self._saved:
            if group[self.option] is scaled or group[self.option] == scaled:
                group[self.option] = value
        self._saved.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the cuts in force."""
        return {"cuts": [list(cut) for cut in self.cuts], "floor": self.floor}

    @classmethod
    def from_state_dict(cls, remedy: str, option: str, state: dict[str, Any]) -> GroupFactor:
        """Return the effect that `state_dict` described."""
        return cls(remedy, option, [Cut(*cut) for cut in state["cuts"]], float(state["floor"]))


def known_factor(effects: dict[str, Effect], remedy: str, option: str) -> GroupFactor:
    """Return the effect of a remedy among those in force; a new one is put among them."""
    effect = effects.get(remedy)
    if not isinstance(effect, GroupFactor):
        effect = effects[remedy] = GroupFactor(remedy, option)
    return effect
