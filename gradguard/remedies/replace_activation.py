"""Put another activation function in the place of one that does not let the signal through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import MAX_NAMES, Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target

Replaced = Literal[
    "relu", "relu6", "tanh", "sigmoid", "hardtanh", "hardsigmoid", "softplus", "softsign", "softmax", "log_softmax",
    "other",
]  # fmt: skip


@REMEDIES.register
class ReplaceActivation(Remedy):
    """Swap activation modules in their parents; the model's code has to be changed to match before it is used again.

    Args:
        kinds: activations that are replaced; "other" is a module of your own that does the same to every entry.
        to: what comes in their place.
        where: "hidden": those between two layers. "last": those behind the last layer, such as a ReLU before the loss.

    Only modules are seen, not functions called inside a `forward`, and only in a Sequential, where it is sure what
    follows. No parameter and no optimizer state is touched; `gradguard`'s own state remembers the swap, so that a
    resumed run gets it too. The step is dropped: its gradients are those of the old function.
    """

    name = "replace_activation"
    kind = "surgery"
    rank = 10
    timing = "late"
    needs = frozenset({"buffers"})
    what = "Activation modules are exchanged, so that the gradient can pass; parameters stay."
    computed = "Each matching module in a Sequential is replaced in its parent by a fresh one of the kind `to`."
    source = "Glorot, Bordes, Bengio 2011 (ReLU); AUTOTRAINER (Zhang et al. 2021) for swapping them in training"

    kinds: tuple[Replaced, ...] = Field(default=("sigmoid", "hardsigmoid", "softmax", "log_softmax"), min_length=1)
    to: Literal["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "identity"] = "relu"
    where: Literal["hidden", "last"] = "hidden"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`; activations have no parameters, so that `rows` is not used.

        Raises:
            Unavailable: there is none of these kinds where it can be exchanged for sure.
        """
        from gradguard.surgery import activation_swap

        target.refuse_if_stopped()
        found = activation_swap.find(target.model, frozenset(self.kinds), self.where)
        if not found:
            raise Unavailable(
                f"no {self.where} activation module of kind {', '.join(self.kinds)} stands in a Sequential"
            )
        target.operate()
        chosen = dict.fromkeys(found, self.to)
        activation_swap.replace(target.model, chosen)
        target.replaced.update(chosen)
        kinds = ", ".join(sorted(set(found.values())))
        places = ", ".join([*list(found)[:MAX_NAMES], *(["..."] if len(found) > MAX_NAMES else [])])
        return Change(
            summary=f"{len(found)} activations ({kinds}) replaced by {self.to}: change the model's code to match",
            before={"kinds": kinds},
            after={"kind": self.to, "places": places, "number": len(found)},
        )
