"""Dead units begun anew: fresh weights come in, nothing goes out yet, so that the model computes what it did."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from gradguard.model.module_chain import Neighbours
from gradguard.optimizer.optimizer_state import reset_entries
from gradguard.surgery.initialization import gain_of, redraw


@torch.no_grad()
def revive(
    around: Neighbours, kind: str, dead: list[int], optimizer: Optimizer, generator: torch.Generator
) -> list[str]:
    """Give dead units fresh incoming weights and outgoing weights of 0; the optimizer forgets these entries.

    Incoming weights are drawn as He's initialisation would for the layer and its activation, biases become 0, batch
    normalisation in between 1 and 0 with the running statistics of its start.

    Args:
        around: the layers before and behind the units.
        kind: of the activation.
        dead: indices of the units.
        optimizer: whose state of these entries begins anew; parameters that are not its own are changed all the same.
        generator: on the CPU.

    Returns:
        The names of the parameters that were changed.

    Source: ReDo, Sokar et al. 2023, arXiv:2302.12902, algorithm 1.
    """
    before, after, norm, copies = around
    changed: list[str] = []

    def write(owner: str, module: torch.nn.Module, name: str, values: Tensor | float, dim: int, at: list[int]) -> None:
        param = getattr(module, name, None)
        if not isinstance(param, Tensor):
            return
        index = torch.tensor(at, device=param.device)
        if isinstance(values, Tensor):
            param.index_copy_(dim, index, values.to(param))
        else:
            param.index_fill_(dim, index, values)
        if isinstance(param, torch.nn.Parameter):
            where = torch.zeros(param.shape, dtype=torch.bool, device=param.device).index_fill_(dim, index, True)
            reset_entries(optimizer, param, where)
            changed.append(f"{owner}.{name}" if owner else name)

    weight = before.module.weight
    assert isinstance(weight, Tensor)
    fresh = torch.empty((len(dead), *weight.shape[1:]))
    redraw(fresh, "he", gain_of(kind), generator)
    write(before.name, before.module, "weight", fresh, 0, dead)
    write(before.name, before.module, "bias", 0.0, 0, dead)
    if norm is not None and isinstance(norm.module, _NormBase):
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            write(norm.name, norm.module, name, value, 0, dead)
    if after is not None:
        columns = [unit * copies + copy for unit in dead for copy in range(copies)]
        write(after.name, after.module, "weight", 0.0, 1, columns)
    return changed
