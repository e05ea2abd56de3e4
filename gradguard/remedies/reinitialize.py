"""Draw the weights afresh, as a good initialisation would have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradguard.flow.target import Target


@REMEDIES.register
class Reinitialize(Remedy):
    """Give the rule's parameters fresh values and let the optimizer forget them. What they had learnt is lost.

    Args:
        scheme: of linear and convolutional weights. "he" and "xavier" are normal, "orthogonal" has orthonormal rows or
            columns, each with the gain of the activation that follows; "lsuv" starts orthonormal and is scaled by what
            the layers make of the model's last batch.
        seed: of the fresh values, together with the step, >= 0.

    Recurrent weights become orthogonal, embeddings normal, biases 0, normalisation layers 1 and 0 with the running
    statistics of the start. Parameters that belong to no layer of torch's own are left alone. The step is dropped: its
    gradients are those of the old weights.
    """

    name = "reinitialize"
    kind = "surgery"
    rank = 20
    timing = "late"
    needs = frozenset({"buffers", "inputs"})
    what = "The run starts again from weights at which signals neither die nor blow up."
    computed = (
        "he: std = gain/sqrt(fan_in); xavier: std = gain sqrt(2/(fan_in + fan_out)); orthogonal: Q times gain; lsuv: "
        "Q, then layer after layer weight /= std(output). The gain is that of the activation that follows in a "
        "Sequential, else of the model's commonest."
    )
    source = "He et al. 2015; Glorot and Bengio 2010; Saxe et al. 2014; Mishkin and Matas 2016 (LSUV)"

    scheme: Literal["he", "xavier", "orthogonal", "lsuv"] = "he"
    seed: int = Field(default=0, ge=0)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`.

        Raises:
            Unavailable: no parameter belongs to a layer that is known; or, for "lsuv", there is no batch to run, it
                does not run, or several ranks would scale by different batches.
        """
        from torch.nn.modules.batchnorm import _NormBase

        from gradguard.gradients.sharded import is_sharded
        from gradguard.optimizer import optimizer_state

        target.refuse_if_stopped()
        chosen = {id(target.params[row]) for row in (range(len(target.params)) if rows is None else rows)}
        if any(is_sharded(target.params[row]) for row in (range(len(target.params)) if rows is None else rows)):
            raise Unavailable("the parameters are spread over ranks: no layer can be drawn as a whole")
        if self.scheme == "lsuv":
            _check_batch(target)
        tensors = (*target.model.parameters(), *target.model.buffers())
        saved = [(tensor, tensor.detach().clone()) for tensor in tensors] if self.scheme == "lsuv" else []
        drawn = self._draw(target, chosen)
        if not drawn:
            raise Unavailable("none of these parameters belongs to a layer that is known here")
        if self.scheme == "lsuv":
            _scale(target, drawn, saved)
        target.operate()
        for module in dict.fromkeys(module for module, _ in drawn):
            if isinstance(module, _NormBase):  # only now: dropping the step has put buffers back
                module.reset_running_stats()
        params = [param for _, param in drawn]
        num_known = optimizer_state.reset_state(target.optimizer, params)
        return Change(
            summary=f"{len(params)} parameters drawn afresh ({self.scheme}), {len(chosen) - len(params)} left alone",
            before={"parameters_with_optimizer_state": num_known},
            after={"parameters": len(params), "scheme": self.scheme, "left_alone": len(chosen) - len(params)},
        )

    def _draw(self, target: Target, chosen: set[int]) -> list[tuple[nn.Module, Tensor]]:
        """Draw the chosen parameters afresh; return each that was, with its module."""
        from gradguard.model import module_chain
        from gradguard.probes.activation_places import kind_of
        from gradguard.surgery import initialization

        behind = module_chain.activations_behind(target.model)
        kinds = Counter(kind for module in target.model.modules() if (kind := kind_of(module)) in initialization.GAINS)
        usual = kinds.most_common(1)[0][0] if kinds else None
        generator = initialization.seeded(self.seed, target.stats.step)
        waiting, drawn = set(chosen), []
        for path, module in target.model.named_modules():
            own = {name: param for name, param in module.named_parameters(recurse=False) if id(param) in waiting}
            waiting -= set(map(id, own.values()))
            gain = initialization.gain_of(behind.get(path, usual))
            done = initialization.reinitialize_module(module, own, self.scheme, gain, generator)
            drawn += [(module, own[name]) for name in done]
        return drawn


def _check_batch(target: Target) -> None:
    from gradguard.flow.exchange import Exchange

    if Exchange.is_needed():
        raise Unavailable("lsuv scales by a batch, and each rank has another one: use he, xavier or orthogonal")
    if target.inputs is None or target.inputs.last is None:
        raise Unavailable("lsuv needs a batch, and no forward pass of the model was seen in training mode")


def _scale(target: Target, drawn: Sequence[tuple[nn.Module, Tensor]], saved: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Scale the layers that were drawn by their outputs; if the model does not run, put everything back."""
    import torch

    from gradguard.model.module_chain import LAYERS
    from gradguard.model.rerun import rerun
    from gradguard.surgery.lsuv import scale_to_unit_variance

    own = {id(param) for _, param in drawn}
    layers = [
        module
        for module in dict.fromkeys(module for module, _ in drawn)
        if isinstance(module, LAYERS) and all(id(param) in own for param in module.parameters())
    ]
    try:
        scale_to_unit_variance(layers, lambda: rerun(target.model, target.inputs.last))  # type: ignore[union-attr, arg-type]
    except Exception as error:
        with torch.no_grad():
            for tensor, values in saved:
                tensor.copy_(values)
        raise Unavailable(f"the model did not run on its last batch ({error!r}): nothing was changed") from error
