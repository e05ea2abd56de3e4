"""Layer-sequential unit variance: weights scaled, layer after layer, until each gives a signal of standard size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def scale_to_unit_variance(layers: Sequence[nn.Module], forward: Callable[[], object]) -> dict[int, float]:
    """Scale the weights of layers so that what each gives has a standard deviation of 1, in one forward pass.

    A layer without a bias is linear in its weight, so that the output is scaled by what the weight is: the layers
    behind see at once what the scaled one gives. Biases have to be 0 before.

    Args:
        layers: linear or convolutional, of those that `forward` runs.
        forward: runs the model on a batch.

    Returns:
        {position in `layers`: factor on the weight}, for those that were run and gave a signal.

    Source: Mishkin and Matas 2016, arXiv:1511.06422; their repetition is not needed where biases are 0.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> _ = [nn.init.zeros_(layer.bias) for layer in (model[0], model[2])]
        >>> batch = torch.linspace(-1, 1, 192).reshape(3, 64).T ** 3
        >>> factors = scale_to_unit_variance([model[0], model[2]], lambda: model(batch))
        >>> sorted(factors), round(model(batch).std(correction=0).item(), 3)
        ([0, 1], 1.0)
    """
    factors: dict[int, float] = {}

    def scale(position: int, module: nn.Module, output: Any) -> Any:
        if position in factors or not isinstance(output, Tensor):
            return None
        spread = float(output.float().std(correction=0))
        if not 0.0 < spread < float("inf"):
            return None
        factors[position] = 1.0 / spread
        weight = module.weight
        assert isinstance(weight, Tensor)
        weight.mul_(factors[position])
        return output * factors[position]

    handles = [
        layer.register_forward_hook(lambda module, _, output, position=position: scale(position, module, output))
        for position, layer in enumerate(layers)
    ]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return factors
