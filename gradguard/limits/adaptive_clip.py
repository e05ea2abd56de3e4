"""Adaptive gradient clipping: each unit's gradient against its own weights. Pure tensor maths."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_norms(values: Tensor, num_unit_dims: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the L2 norm of every unit of a real tensor, kept as dimensions of size 1.

    Args:
        values: dense.
        num_unit_dims: of the first dimensions that number units: 1 for one norm a row (or filter), 0 for one of all.
        dtype: of the sum; None for float32, or float64 for such values.

    Example:
        >>> unit_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 1)
        tensor([[5.],
                [0.]])
    """
    if dtype is None:
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    dims = tuple(range(num_unit_dims, values.ndim))
    if not dims:
        return values.abs().to(dtype)
    norms: Tensor = torch.linalg.vector_norm(values, dim=dims, keepdim=True, dtype=dtype)
    return norms


@torch.no_grad()
def clip_units_(
    weight: Tensor, grad: Tensor, factor: float, eps: float = 1e-3, *, is_vector: bool = False, is_huge: bool = False
) -> tuple[Tensor, Tensor]:
    """Shorten in place the gradient of every unit to at most `factor` times the norm of the unit's weights.

    A unit is a row of a matrix or a filter of a convolution (all dimensions but the first); tensors of fewer than two
    dimensions are one unit. Weights count as at least `eps`, so that a unit of zeros can leave zero. A unit whose
    gradient is not finite is left alone.

    Args:
        weight: real and dense.
        grad: of the same shape.
        factor: lambda of the paper, > 0.
        eps: > 0, in the unit of the weights.
        is_vector: all is one unit, whatever its dimensions.
        is_huge: squares of the gradient's entries may not fit float32.

    Returns:
        Norms that are left, one a unit; () int64, how many units were clipped. Nothing waits for the device.

    Source: Brock et al. 2021, "High-Performance Large-Scale Image Recognition Without Normalization", equation 3.

    Example:
        >>> grad = torch.tensor([[3.0, 4.0], [0.0, 0.01]])
        >>> left, num_clipped = clip_units_(torch.ones(2, 2), grad, 0.5)
        >>> left.flatten(), num_clipped
        (tensor([0.7071, 0.0100]), tensor(1))
        >>> grad
        tensor([[0.4243, 0.5657],
                [0.0000, 0.0100]])
    """
    num_unit_dims = 0 if is_vector or grad.ndim < 2 else 1
    norms = unit_norms(grad, num_unit_dims, torch.float64 if is_huge else None)
    limits = unit_norms(weight, num_unit_dims, norms.dtype).clamp_(min=eps).mul_(factor)
    is_beyond = (norms > limits) & (norms < torch.inf)
    grad.mul_(torch.where(is_beyond, limits / norms, 1.0).to(grad.dtype))
    return torch.where(is_beyond, limits, norms), is_beyond.sum()
