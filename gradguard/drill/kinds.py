"""The kinds of fault that a drill has, as data: what strikes, where, and for how many steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradguard.errors import UsageError, did_you_mean


if TYPE_CHECKING:
    from gradguard.faults.fault import Fault, Place
    from gradguard.faults.fault import Kind as What

WEIGHT = "block.2.weight"  # where a fault strikes that strikes one weight or one gradient


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Args:
        name: what `--only` calls it.
        title: a few words for people.
        what: see `gradguard.faults.Fault`.
        where: likewise.
        num_steps: how many steps in a row it strikes, >= 1.
        options: further arguments of the fault.
    """

    name: str
    title: str
    what: What
    where: Place
    num_steps: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def fault(self, at: int) -> Fault:
        """Return the fault that strikes from this step on (0-based)."""
        from gradguard.faults import Fault  # here, because it imports torch and the names are read without

        return Fault(self.what, self.where, at=range(at, at + self.num_steps), **self.options)


KINDS = (
    Kind("nan-batch", "NaN in a batch", "nan", "batch"),
    Kind("nan-burst", "NaN in 10 batches", "nan", "batch", num_steps=10),
    Kind("bad-batch", "batch x 1000", "scale", "batch", options={"factor": 1000.0}),
    Kind("norm-batch", "norm's input x 1e8", "scale", "batch", options={"factor": 1e8, "module": "norm"}),
    Kind("inf-gradient", "Inf in a gradient", "inf", "gradient", options={"parameters": WEIGHT}),
    Kind("exploding-gradient", "gradient x 1000", "scale", "gradient", options={"factor": 1000.0}),
    Kind("bit-flip-gradient", "bit flip, gradient", "bitflip", "gradient", options={"parameters": WEIGHT}),
    Kind("zero-gradient", "gradient zeroed", "zero", "gradient"),
    Kind("lr-spike", "learning rate x 300", "scale", "lr", options={"factor": 300.0}),
    Kind("bit-flip-weight", "bit flip, weight", "bitflip", "weight", options={"parameters": WEIGHT}),
    Kind("nan-weight", "NaN in a weight", "nan", "weight", options={"parameters": WEIGHT}),
    Kind("scaled-weights", "all weights x 10", "scale", "weight", options={"factor": 10.0, "parameters": "*.weight"}),
)


def find_kinds(names: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of these names in the drill's order, all of them for no name.

    Raises:
        UsageError: there is no kind of that name.

    Example:
        >>> [kind.title for kind in find_kinds(["lr-spike", "nan-batch"])]
        ['NaN in a batch', 'learning rate x 300']
    """
    known = [kind.name for kind in KINDS]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown kind of fault {name!r}{did_you_mean(name, known)}")
    return tuple(kind for kind in KINDS if not names or kind.name in names)
