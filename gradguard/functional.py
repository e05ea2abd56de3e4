"""Pure tensor maths on lists of gradients: norms, exact norms, coefficients. No state, no hooks.

Shapes: a "gradient list" holds P dense or sparse tensors of any shape, dtype and device; norms come back as (P,)
float32 numpy arrays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradguard.evidence.stats import FloatArray
from gradguard.gradients.sharded import is_sharded, layout_of, local, norms_over_ranks


FLOAT32_MAX = float(np.finfo(np.float32).max)
FEW = 64  # norms, up to which Python's own arithmetic takes less time than three calls of numpy
_WIDE = (torch.float32, torch.float64)


def dense_values(grad: Tensor) -> Tensor:
    """Return the entries of a gradient as a real dense tensor that shares its memory where that is possible.

    Sparse gradients are coalesced first (entries of one index add up), complex ones are seen as pairs of reals.

    Example:
        >>> dense_values(torch.ones(2, dtype=torch.complex64)).shape
        torch.Size([2, 2])
    """
    if grad.layout != torch.strided:
        grad = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad.values()
    return torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad


def grad_norms(grads: Sequence[Tensor]) -> FloatArray:
    """Return the L2 norm of each gradient: (P,) float32, one host transfer per device.

    Low-precision gradients are accumulated in float32. A norm beyond float32 comes back as inf; `exact_norm` tells such
    an overflow from an infinite entry.

    Example:
        >>> grad_norms([torch.tensor([3.0, 4.0]), torch.zeros(2)])
        array([5., 0.], dtype=float32)
    """
    norms = np.empty(len(grads), dtype=np.float32)
    for where, values in device_norms(grads):
        norms[where] = values.to("cpu", torch.float32).numpy()
    return norms


def device_norms(grads: Sequence[Tensor]) -> list[tuple[list[int], Tensor]]:
    """Return the L2 norms where the gradients are: (positions, their norms) for each device and dtype, without waiting.

    Example:
        >>> device_norms([torch.tensor([3.0, 4.0]), torch.zeros(2)])
        [([0, 1], tensor([5., 0.]))]
    """
    kinds = {(grad.device, grad.dtype, grad.layout, type(grad)) for grad in grads}
    if len(kinds) == 1 and next(iter(kinds))[2:] == (torch.strided, Tensor) and not grads[0].is_complex():
        wide = grads[0].dtype if grads[0].dtype in _WIDE else torch.float32
        return [(list(range(len(grads))), torch.stack(torch._foreach_norm(list(grads), 2, dtype=wide)))]
    groups: dict[Any, tuple[list[int], list[Tensor]]] = defaultdict(lambda: ([], []))
    for index, grad in enumerate(grads):
        layout = layout_of(grad) if is_sharded(grad) else None
        values = dense_values(whole(grad) if layout is None else local(grad))
        where, members = groups[(values.device, values.dtype, layout)]
        where.append(index)
        members.append(values)
    found = []
    for (_, dtype, layout), (where, members) in groups.items():
        norms = torch.stack(torch._foreach_norm(members, 2, dtype=dtype if dtype in _WIDE else torch.float32))
        found.append((where, norms if layout is None else norms_over_ranks(norms, layout)))
    return found


def sum_up(norms: FloatArray) -> tuple[float, bool]:
    """Return the L2 norm of (P,) norms, in float64, and whether all of them are above 0.

    Example:
        >>> sum_up(np.array([3.0, 4.0], dtype=np.float32))
        (5.0, True)
    """
    if len(norms) <= FEW:
        values = norms.tolist()
        return math.hypot(*values), min(values, default=0.0) > 0.0
    wide = norms.astype(np.float64)
    return math.sqrt(float(wide.dot(wide))), bool(np.count_nonzero(norms) == len(norms))


def whole(grad: Tensor) -> Tensor:
    """Return a DTensor gathered from all ranks, any other tensor as it is."""
    return grad.full_tensor() if is_sharded(grad) else grad  # type: ignore[attr-defined]


def exact_norm(grad: Tensor) -> tuple[float, int, int]:
    """Return (norm, NaN entries, infinite entries) of one gradient, exact beyond the range of float32.

    The norm is that of the finite entries, scaled by the largest of them before squaring, so it overflows only beyond
    float64.

    Example:
        >>> exact_norm(torch.tensor([3e30, 4e30]))[0] > 4.9e30
        True
        >>> exact_norm(torch.tensor([1.0, float("nan"), float("-inf")]))
        (1.0, 1, 1)
    """
    values = dense_values(whole(grad)).detach()
    num_nan = int(values.isnan().sum())
    num_inf = int(values.isinf().sum())
    if num_nan or num_inf:
        values = values[values.isfinite()]
    if values.numel() == 0:
        return 0.0, num_nan, num_inf
    largest = float(values.abs().max())
    if largest == 0.0:
        return 0.0, num_nan, num_inf
    return largest * float((values.to(torch.float64) / largest).norm()), num_nan, num_inf


def nonfinite_tensors(tensors: Sequence[Tensor]) -> list[int]:
    """Return the positions of tensors that hold a NaN or infinite entry, in one pass and one transfer per device.

    Example:
        >>> nonfinite_tensors([torch.ones(2), torch.tensor([float("inf")]), torch.tensor([1])])
        [1]
    """
    floating = [(i, t) for i, t in enumerate(tensors) if (t.is_floating_point() or t.is_complex()) and t.numel()]
    if not floating:
        return []
    norms = grad_norms([tensor.detach() for _, tensor in floating])
    suspects = [floating[i] for i in np.flatnonzero(~np.isfinite(norms))]
    return [i for i, tensor in suspects if has_nonfinite(tensor)]


def has_nonfinite(tensor: Tensor) -> bool:
    """Return whether a tensor holds a NaN or infinite entry.

    Example:
        >>> has_nonfinite(torch.tensor([1.0, float("inf")]))
        True
    """
    return not bool(dense_values(whole(tensor)).isfinite().all())


def is_overlapping(tensor: Tensor) -> bool:
    """Return whether entries of a tensor share memory (it was expanded), so that it cannot be written to."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return the factor that brings `norm` down to `max_norm`, 1.0 when it is already there.

    The denominator is norm + 1e-6, as in `torch.nn.utils.clip_grad_norm_`, so the two agree to the last bit they share.

    Args:
        norm: finite L2 norm, >= 0.
        max_norm: limit, >= 0.

    Example:
        >>> clip_coefficient(1.0, 2.0)
        1.0
        >>> round(clip_coefficient(4.0, 2.0), 6)
        0.5
    """
    return min(1.0, max_norm / (norm + 1e-6))


def scale_(grads: Sequence[Tensor], factor: float) -> None:
    """Multiply gradients by one factor in place; sparse ones keep their layout.

    Example:
        >>> grad = torch.ones(2)
        >>> scale_([grad], 0.5)
        >>> grad
        tensor([0.5000, 0.5000])
    """
    dense = [local(grad) for grad in grads if grad.layout == torch.strided]
    if dense:
        torch._foreach_mul_(dense, factor)
    for grad in grads:
        if grad.layout != torch.strided:
            grad.mul_(factor)


def scale_each_(grads: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Multiply each gradient by its own factor in place; sparse ones keep their layout.

    Example:
        >>> grads = [torch.ones(1), torch.ones(1)]
        >>> scale_each_(grads, [0.5, 2.0])
        >>> grads
        [tensor([0.5000]), tensor([2.])]
    """
    dense = [i for i, grad in enumerate(grads) if grad.layout == torch.strided]
    if dense:
        torch._foreach_mul_([local(grads[i]) for i in dense], [factors[i] for i in dense])
    for grad, factor in zip(grads, factors, strict=True):
        if grad.layout != torch.strided:
            grad.mul_(factor)


def writable_values(grad: Tensor) -> Tensor:
    """Return the entries of a gradient as a real tensor; writing to it changes the gradient itself.

    A sparse gradient that is not coalesced is coalesced in place first, since its repeated entries only mean something
    as a sum.
    """
    if grad.layout == torch.sparse_coo and not grad.is_coalesced():
        with torch.no_grad():
            grad.data = grad.coalesce()
    if grad.is_conj():
        with torch.no_grad():
            grad.data = grad.resolve_conj()
    return dense_values(grad)
