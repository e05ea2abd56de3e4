"""Tensors that are spread over ranks (DTensor, as FSDP2 and tensor parallelism use them): each rank holds a part."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, which shares its memory; any other tensor as it is.

    Example:
        >>> local(torch.ones(2))
        tensor([1., 1.])
    """
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def spread_like(part: Tensor, model: Tensor) -> Tensor:
    """Return this rank's part as a DTensor spread as `model` is; as it is where `model` is none of that shape."""
    if not is_sharded(model) or part.shape != local(model).shape or part.ndim == 0:
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        model.device_mesh,  # type: ignore[attr-defined]
        model.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=model.shape,
        stride=model.stride(),
    )


def layout_of(tensor: Tensor) -> Any:
    """Return how a DTensor is spread, as something to group by; None for one whose parts do not add up simply.

    A partial sum that is still to be reduced has no norm yet; it has to be gathered.
    """
    placements = tensor.placements  # type: ignore[attr-defined]
    return None if any(placement.is_partial() for placement in placements) else (tensor.device_mesh, placements)  # type: ignore[attr-defined]


def norms_over_ranks(norms: Tensor, layout: Any) -> Tensor:
    """Return the norms of whole tensors from those of this rank's parts: the squares add up over the ranks.

    One all-reduce of n numbers for each dimension of the mesh along which the tensors are cut.

    Args:
        norms: (n,) of the parts.
        layout: what `layout_of` says of every one of them.
    """
    mesh, placements = layout
    squares = norms.to(torch.float64).square()
    for dimension, placement in enumerate(placements):
        if placement.is_shard():
            dist.all_reduce(squares, group=mesh.get_group(dimension))
    return squares.sqrt()
