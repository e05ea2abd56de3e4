"""Fresh values for the parameters of torch's own layers, from a generator of one's own."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd


Scheme = Literal["he", "xavier", "orthogonal", "lsuv"]

# By kind of activation: 1/sqrt(mean of f(z)^2) for standard normal z, so that layers hand on what they get. He et al.
# give that of ReLU; that of tanh is close to the 5/3 of nn.init.calculate_gain.
GAINS = {
    "relu": 1.4142,
    "relu6": 1.4142,
    "leaky_relu": 1.4141,
    "prelu": 1.372,
    "rrelu": 1.3785,
    "elu": 1.2452,
    "celu": 1.2452,
    "selu": 1.0,
    "gelu": 1.5335,
    "silu": 1.6765,
    "mish": 1.4868,
    "hardswish": 1.7367,
    "tanh": 1.5925,
    "hardtanh": 1.392,
    "softsign": 2.3375,
}
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
WEIGHTED = (nn.Linear, nn.Bilinear, _ConvNd)


def seeded(seed: int, step: int) -> torch.Generator:
    """Return a generator on the CPU that gives the same numbers on every rank and in a resumed run.

    Args:
        seed: of the remedy, >= 0.
        step: of the training, >= 0.
    """
    return torch.Generator().manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))


def gain_of(kind: str | None) -> float:
    """Return the factor on a weight that makes up for what the activation behind it takes from the signal.

    Args:
        kind: of activation; None, and kinds that are not known, have 1.

    Example:
        >>> gain_of("relu"), gain_of(None)
        (1.4142, 1.0)
    """
    return GAINS.get(kind or "", 1.0)


@torch.no_grad()
def redraw(weight: Tensor, scheme: Scheme, gain: float, generator: torch.Generator) -> None:
    """Give a weight fresh values, in place; the global random generator is not used.

    Args:
        weight: (outputs, inputs, ...) of two dimensions at least, floating.
        scheme: "he": normal, std = gain / sqrt(fan_in). "xavier": normal, std = gain sqrt(2 / (fan_in + fan_out)).
            "orthogonal", and "lsuv", which starts from it: orthonormal rows or columns, times gain.
        gain: see `gain_of`.
        generator: on the CPU, so that every device gets the same values.

    Source: He et al. 2015 (arXiv:1502.01852), Glorot and Bengio 2010, Saxe et al. 2014 (arXiv:1312.6120).

    Example:
        >>> weight = torch.zeros(3, 3)
        >>> redraw(weight, "orthogonal", 1.0, torch.Generator().manual_seed(0))
        >>> torch.allclose(weight @ weight.T, torch.eye(3), atol=1e-6)
        True
    """
    fresh = torch.empty(weight.shape, dtype=torch.float32)
    if scheme == "he":
        fan_in = max(1, weight[0].numel())
        fresh.normal_(0.0, gain / math.sqrt(fan_in), generator=generator)
    elif scheme == "xavier":
        nn.init.xavier_normal_(fresh, gain, generator)
    else:
        nn.init.orthogonal_(fresh, gain, generator)
    weight.copy_(fresh)


@torch.no_grad()
def reinitialize_module(
    module: nn.Module, names: Collection[str], scheme: Scheme, gain: float, generator: torch.Generator
) -> list[str]:
    """Give a layer's own parameters fresh values; return the names of those that got some.

    Weights of linear and convolutional layers by the scheme; recurrent ones orthogonal, gate by gate, and what goes
    into a recurrent layer by Xavier; embeddings standard normal; normalisation layers 1 and 0; biases 0. Running
    statistics are buffers, and are left. Parameters of other kinds of modules are left alone.

    Args:
        module: the owner.
        names: of its own parameters that may be changed, such as "weight".
        scheme: for the weights.
        gain: of what follows.
        generator: on the CPU.
    """
    done = []
    for name, param in module.named_parameters(recurse=False):
        if name in names and _fill(module, name, param, scheme, gain, generator):
            done.append(name)
    return done


def _fill(module: nn.Module, name: str, param: Tensor, scheme: Scheme, gain: float, generator: torch.Generator) -> bool:
    """Give one parameter fresh values; return whether it is known what it is."""
    if isinstance(module, NORMS):
        param.fill_(1.0 if name == "weight" else 0.0)
    elif isinstance(module, (*WEIGHTED, *RECURRENT, nn.MultiheadAttention)) and "bias" in name:
        param.zero_()
    elif isinstance(module, WEIGHTED):
        redraw(param, scheme, gain, generator)
    elif isinstance(module, RECURRENT):
        is_recurrent = name.startswith("weight_hh")
        hidden = module.hidden_size
        for gate in torch.split(param, hidden) if len(param) % hidden == 0 else (param,):
            redraw(gate, "orthogonal" if is_recurrent else "xavier", 1.0, generator)
    elif isinstance(module, nn.MultiheadAttention) and name.endswith("_weight"):
        redraw(param, "xavier", 1.0, generator)
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        param.copy_(torch.empty(param.shape).normal_(generator=generator))
        if module.padding_idx is not None:
            param[module.padding_idx].zero_()
    else:
        return False
    return True
