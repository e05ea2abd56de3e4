"""Where in a model activations are looked at, and what kind each is. Nothing is hooked here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from gradguard.model.parameter_names import WRAPPERS


MAX_PLACES = 128  # beyond it, as many are taken evenly over the depth

# Subclasses before their base: nn.ReLU6 is an nn.Hardtanh.
KINDS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.ReLU, "relu"),
    (nn.ReLU6, "relu6"),
    (nn.LeakyReLU, "leaky_relu"),
    (nn.RReLU, "rrelu"),
    (nn.PReLU, "prelu"),
    (nn.ELU, "elu"),
    (nn.CELU, "celu"),
    (nn.SELU, "selu"),
    (nn.GELU, "gelu"),
    (nn.SiLU, "silu"),
    (nn.Mish, "mish"),
    (nn.Hardswish, "hardswish"),
    (nn.Tanh, "tanh"),
    (nn.Sigmoid, "sigmoid"),
    (nn.Hardtanh, "hardtanh"),
    (nn.Hardsigmoid, "hardsigmoid"),
    (nn.Softplus, "softplus"),
    (nn.Softsign, "softsign"),
    (nn.Threshold, "threshold"),
    (nn.GLU, "glu"),
    (nn.Softmax, "softmax"),
    (nn.LogSoftmax, "log_softmax"),
)
NAMED_KINDS = ("gelu", "silu", "mish", "relu")  # of parameterless modules of others, by a part of their class's name
INPUT = "input"


@dataclass(frozen=True)
class Place:
    """One module whose output, or whose input, is looked at.

    Args:
        name: fully qualified.
        kind: of activation, `INPUT` for the input of a weighted module.
        module: it is hooked.
        num_spatial: dimensions after the channels, which are dimension 1; 0 where the units are the last dimension.
    """

    name: str
    kind: str
    module: nn.Module
    num_spatial: int

    @property
    def is_input(self) -> bool:
        """Whether what goes into the module is looked at, not what comes out of it."""
        return self.kind == INPUT


class Found(NamedTuple):
    """What there is to look at in a module, and what cannot be looked at, one sentence each."""

    places: list[Place]
    recurrent: list[tuple[str, nn.RNNBase]]
    unseen: list[str]


class _Visit(NamedTuple):
    name: str
    module: nn.Module
    previous: nn.Module | None  # what a Sequential runs just before it


def is_compiled(module: nn.Module) -> bool:
    """Return whether a call of this module runs compiled code, in which a hook would be traced."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def has_fast_path(module: nn.Module) -> bool:
    """Return whether a hook on a module or within it changes how it computes in evaluation, by some rounding."""
    return isinstance(module, nn.TransformerEncoderLayer)


def has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; a ModuleDict and the like only hold others."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def roots_of(module: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    """Return the outermost modules that can be called, by name: the module itself, or those that it holds.

    Example:
        >>> [name for name, _ in roots_of(nn.ModuleDict({"a": nn.ReLU(), "b": nn.ModuleList([nn.Tanh()])}))]
        ['a', 'b.0']
    """
    return [(name, module)] if has_forward(module) else roots_below(module, name)


def roots_below(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """Return the outermost modules within a module that can be called, for one that is never called itself."""
    return [root for key, child in module.named_children() for root in roots_of(child, _join(module, name, key))]


def kind_of(module: nn.Module) -> str | None:
    """Return the kind of an activation module, None for any other module.

    Example:
        >>> kind_of(nn.ReLU6()), kind_of(nn.Linear(1, 1))
        ('relu6', None)
    """
    for known, kind in KINDS:
        if isinstance(module, known):
            return kind
    if any(True for _ in module.children()) or any(True for _ in module.parameters()):
        return None
    name = type(module).__name__.lower()
    return next((kind for kind in NAMED_KINDS if kind in name), None)


def find_places(root: nn.Module, name: str = "") -> Found:
    """Return the places in a module, in the order in which the modules are registered.

    Args:
        root: looked through.
        name: of the root; the names of places begin with it.
    """
    found = Found([], [], [])
    visits = list(_visit(root, name, found.unseen))
    spatial = _spatial_dimensions([visit.module for visit in visits])
    for visit, num_spatial in zip(visits, spatial, strict=True):
        module = visit.module
        kind = kind_of(module)
        if kind is not None:
            found.places.append(Place(visit.name, kind, module, num_spatial))
        elif isinstance(module, nn.RNNBase):
            found.recurrent.append((visit.name, module))
        elif isinstance(module, nn.RNNCellBase):
            found.unseen.append(f"{visit.name!r} is a cell in a loop: its gradient through time is not measured")
        elif isinstance(module, (nn.Linear, _ConvNd)) and _may_follow_a_function(visit):
            found.places.append(Place(visit.name, INPUT, module, num_spatial))
    if (count := len(found.places)) > MAX_PLACES:
        found.unseen.append(f"{MAX_PLACES} of the {count} places are looked at, evenly over the depth")
        found.places[:] = [found.places[i * count // MAX_PLACES] for i in range(MAX_PLACES)]
    return found


def _may_follow_a_function(visit: _Visit) -> bool:
    """Return whether the input may come from an activation function: between the modules of a Sequential is none."""
    previous = visit.previous
    if previous is None:
        return True
    is_leaf = type(previous).__module__.startswith("torch.nn.") and not any(True for _ in previous.children())
    return not is_leaf


def _visit(module: nn.Module, name: str, unseen: list[str], seen: set[int] | None = None) -> Iterator[_Visit]:
    """Yield the modules at and below `module` that can be hooked, each once."""
    seen = set() if seen is None else seen
    pending: list[_Visit] = [_Visit(name, module, None)]
    while pending:
        visit = pending.pop()
        if id(visit.module) in seen:
            continue
        seen.add(id(visit.module))
        called = repr(visit.name) if visit.name else "the model"
        if is_compiled(visit.module):
            unseen.append(f"{called} is compiled: what happens inside it cannot be seen")
            continue
        if isinstance(visit.module, torch.jit.ScriptModule):
            unseen.append(f"{called} is a TorchScript module: what happens inside it cannot be seen")
            continue
        yield visit
        if isinstance(visit.module, nn.MultiheadAttention):  # its output layer is called as a function
            continue
        is_in_sequence = isinstance(visit.module, nn.Sequential)
        children, previous = [], None
        for key, child in visit.module._modules.items():
            if child is not None:
                children.append(_Visit(_join(visit.module, visit.name, key), child, previous))
                previous = child if is_in_sequence else None
        pending += reversed(children)


def _spatial_dimensions(modules: list[nn.Module]) -> list[int]:
    """Return how many dimensions follow the channels at each module: those of the nearest convolution before it.

    A linear layer or layer normalisation ends the reach of a convolution: behind it units are the last dimension.
    """
    known: list[int | None] = []
    for module in modules:
        if isinstance(module, _ConvNd):
            known.append(len(module.kernel_size))
        elif isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention)):
            known.append(0)
        elif isinstance(module, _NormBase) and type(module).__name__[-2:] in ("2d", "3d"):
            known.append(int(type(module).__name__[-2]))
        else:
            known.append(None)
    current = next((number for number in known if number is not None), 0)
    filled = []
    for number in known:
        current = current if number is None else number
        filled.append(current)
    return filled


def _join(parent: nn.Module, name: str, key: str) -> str:
    """Return a child's name; what only wraps the user's model adds nothing to it."""
    is_wrapper = key in WRAPPERS[1:] or isinstance(parent, (nn.parallel.DistributedDataParallel, nn.DataParallel))
    return name if is_wrapper else f"{name}.{key}" if name else key
