"""What is in a tensor, as plain numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from gradguard.checklist.facts import Tensors


MIN_ROWS = 16  # for statistics of single features


def dense(tensor: Tensor) -> Tensor:
    """Return the entries that a tensor holds, wide enough to be summed: sparse ones without their zeros."""
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def norm_of(tensor: Tensor) -> float:
    """Return the L2 norm."""
    return float(torch.linalg.vector_norm(dense(tensor)))


def num_nonfinite(tensor: Tensor) -> int:
    """Return how many entries are NaN or infinite."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    entries = dense(tensor)
    return int(entries.numel() - entries.isfinite().sum())


@torch.no_grad()
def describe(name: str, tensor: Tensor) -> Tensors:
    """Return what is in a tensor."""
    is_floating = tensor.is_floating_point() or tensor.is_complex()
    entries = dense(tensor)
    found = Tensors(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), is_floating)
    finite = entries[entries.isfinite()]
    found.nonfinite = entries.numel() - finite.numel()
    if finite.numel() == 0:
        return found
    low, high = finite.aminmax()
    found.smallest, found.largest = float(low), float(high)
    found.is_whole = bool((finite == finite.round()).all())
    found.num_values = 1 if low == high else 2 if bool(((finite == low) | (finite == high)).all()) else 3
    if is_floating:
        found.mean, found.std = float(finite.mean()), float(finite.std(correction=0)) if low < high else 0.0
        found.zero_share = float((finite == 0).float().mean())
        if tensor.ndim == 2 and len(tensor) >= MIN_ROWS and found.nonfinite == 0:
            found.feature_stds = tuple(entries.std(0, correction=0).tolist())
    return found
