"""Which layer follows which, where the order of modules says it for sure: in a Sequential, and those within it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.conv import _ConvTransposeNd as _Transposed
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from gradguard.probes.activation_places import kind_of


LAYERS = (nn.Linear, _ConvNd)
UNIT_BY_UNIT = (_DropoutNd, nn.Identity, _MaxPoolNd, _AvgPoolNd, _AdaptiveMaxPoolNd, _AdaptiveAvgPoolNd)


class Link(NamedTuple):
    """One module of a chain.

    Args:
        name: fully qualified.
        module: run just after the link before it.
    """

    name: str
    module: nn.Module


class Neighbours(NamedTuple):
    """The layers around a place.

    Args:
        before: gives the place its units, one each.
        after: takes them; None where the chain ends before another layer.
        norm: batch normalisation between `before` and the place, None without one.
        copies: inputs of `after` that each unit has, side by side: the positions of an image that was flattened.
    """

    before: Link
    after: Link | None
    norm: Link | None
    copies: int


def chains(model: nn.Module) -> list[list[Link]]:
    """Return the chains of a model: the modules of each Sequential that is not itself part of one, in order.

    A Sequential within a Sequential is replaced by what it holds; any other module is one link, whatever it holds. One
    that appears twice in the model is in no chain: what goes into it is not one thing.

    Example:
        >>> [[link.name for link in chain] for chain in chains(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())))]
        [['0', '1.0']]
    """
    counts = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    found: list[list[Link]] = []
    seen: set[int] = set()
    for name, module in model.named_modules():
        if type(module) is not nn.Sequential or id(module) in seen:
            continue
        links = []
        for link in _flatten(name, module):
            seen.add(id(link.module))
            if type(link.module) is not nn.Sequential:
                links.append(link)
        if all(counts[id(link.module)] == 1 for link in links):
            found.append(links)
    return found


def _flatten(name: str, sequence: nn.Sequential) -> Iterator[Link]:
    """Yield every module of a Sequential, and those of Sequentials in it after these themselves."""
    for key, child in sequence.named_children():
        path = f"{name}.{key}" if name else key
        yield Link(path, child)
        if type(child) is nn.Sequential:
            yield from _flatten(path, child)


def activations_behind(model: nn.Module) -> dict[str, str | None]:
    """Return for the linear and convolutional layers of chains the kind of activation that follows, None for none.

    Normalisation, dropout and pooling may come between.

    Example:
        >>> activations_behind(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Tanh(), nn.Linear(2, 1)))
        {'0': 'tanh', '3': None}
    """
    found: dict[str, str | None] = {}
    for chain in chains(model):
        for position, link in enumerate(chain):
            if isinstance(link.module, LAYERS):
                behind = (kind_of(other.module) for other in _until_layer(chain[position + 1 :]))
                found[link.name] = next((kind for kind in behind if kind is not None), None)
    return found


def _until_layer(links: list[Link]) -> Iterator[Link]:
    for link in links:
        if isinstance(link.module, LAYERS):
            return
        yield link


def neighbours(model: nn.Module, place: str) -> Neighbours | str:
    """Return the layers around an activation module, or why they are not known for sure.

    Example:
        >>> around = neighbours(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), "1")
        >>> around.before.name, around.after.name
        ('0', '2')
    """
    for chain in chains(model):
        for position, link in enumerate(chain):
            if link.name == place:
                return _around(chain, position)
    return f"{place!r} is not in a Sequential, or is used more than once: what feeds it is not known for sure"


def _around(chain: list[Link], position: int) -> Neighbours | str:
    place = chain[position].name
    norm = None
    for before in reversed(chain[:position]):
        if isinstance(before.module, _NormBase):
            norm = before
        elif isinstance(before.module, LAYERS):
            break
        elif not isinstance(before.module, (_DropoutNd, nn.Identity)):
            return f"{before.name!r} lies between {place!r} and the layer that feeds it"
    else:
        return f"no layer comes before {place!r}"
    module = before.module
    if isinstance(module, _Transposed) or (isinstance(module, _ConvNd) and module.groups != 1):
        return f"{before.name!r} is a grouped or transposed convolution"
    units = width(module)
    for after in chain[position + 1 :]:
        if isinstance(after.module, LAYERS):
            wanted = inputs(after.module)
            copies, left = divmod(wanted, units)
            is_plain = not isinstance(after.module, _Transposed) and getattr(after.module, "groups", 1) == 1
            if left or not is_plain or (copies != 1 and not isinstance(module, _ConvNd)):
                return f"{after.name!r} does not take the {units} units of {place!r} one by one"
            return Neighbours(before, after, norm, copies)
        if not isinstance(after.module, (*UNIT_BY_UNIT, nn.Flatten)):
            return f"{after.name!r} lies between {place!r} and the layer that it feeds"
    return Neighbours(before, None, norm, 1)


def width(module: nn.Module) -> int:
    """Return the units that a linear or convolutional layer gives."""
    return int(module.out_features if isinstance(module, nn.Linear) else module.out_channels)  # type: ignore[arg-type]


def inputs(module: nn.Module) -> int:
    """Return the features, or channels, that a linear or convolutional layer takes."""
    return int(module.in_features if isinstance(module, nn.Linear) else module.in_channels)  # type: ignore[arg-type]
