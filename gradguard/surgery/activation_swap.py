"""Other activation modules in the places of those that a model has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import nn

from gradguard.model.module_chain import LAYERS, chains
from gradguard.probes.activation_places import kind_of


Kind = Literal["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "identity"]
Where = Literal["hidden", "last"]
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}
UNNAMED = "other"  # what a user's module without parameters does to each entry on its own
NUM_ENTRIES = 16  # of the small input on which that is tried


def find(model: nn.Module, kinds: frozenset[str], where: Where) -> dict[str, str]:
    """Return the activation modules that may be replaced, {name: kind}, in the order of the model.

    Only those in a Sequential, each used once: there it is known what follows. One with hooks of its own is left out.

    Args:
        model: is looked through.
        kinds: that are to be found; "other" is any module of the user's own, without parameters, that does the same to
            every entry.
        where: "hidden": a layer follows. "last": none does, and the chain is the end of the model.

    Example:
        >>> find(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1), nn.Linear(2, 2)), frozenset({"softmax"}), "hidden")
        {'1': 'softmax'}
    """
    found: dict[str, str] = {}
    last = list(model.modules())[-1]
    for chain in chains(model):
        layers = [position for position, link in enumerate(chain) if isinstance(link.module, LAYERS)]
        if not layers:
            continue
        for position, link in enumerate(chain):
            is_hidden = layers[0] < position < layers[-1]
            is_last = position > layers[-1] and chain[-1].module is last
            kind = kind_of(link.module) or (UNNAMED if UNNAMED in kinds and _is_elementwise(link.module) else None)
            is_wanted = is_hidden if where == "hidden" else is_last
            if kind in kinds and is_wanted and not _has_hooks(link.module):
                found[link.name] = str(kind)
    return found


def replace(model: nn.Module, chosen: Mapping[str, str]) -> None:
    """Put fresh activation modules in the places of those with these names.

    Args:
        model: whose modules they are.
        chosen: {name: kind of the new one, one of `MAKERS`}.

    Raises:
        AttributeError: the model has no module of that name.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
        >>> replace(model, {"1": "leaky_relu"})
        >>> model[1]
        LeakyReLU(negative_slope=0.01)
    """
    for name, kind in chosen.items():
        old = model.get_submodule(name)
        owner, _, key = name.rpartition(".")
        fresh = MAKERS[kind]()
        fresh.train(old.training)
        model.get_submodule(owner)._modules[key] = fresh


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


@torch.no_grad()
def _is_elementwise(module: nn.Module) -> bool:
    """Return whether a user's module, without parameters and buffers, does the same to every entry."""
    is_own = not type(module).__module__.startswith("torch.")
    if not is_own or _has_hooks(module) or any(True for _ in (*module.parameters(), *module.buffers())):
        return False
    values = torch.linspace(-1.0, 1.0, NUM_ENTRIES)
    order = torch.arange(NUM_ENTRIES) * 7 % NUM_ENTRIES
    with torch.random.fork_rng(devices=[]):
        try:
            plain, turned = module(values.reshape(4, 4)), module(values[order].reshape(4, 4))
        except Exception:  # whatever it wants, it is not any tensor
            return False
    if not isinstance(plain, torch.Tensor) or plain.shape != (4, 4) or turned.shape != (4, 4):
        return False
    return torch.equal(plain.flatten()[order], turned.flatten())
