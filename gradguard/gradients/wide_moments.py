"""Mean, spread and norm where float32 does not do: in float64, scaled before squaring, in two passes."""

from __future__ import annotations

import math

import torch
from torch import Tensor


PIECE = 1 << 20  # entries that are widened at a time


@torch.no_grad()
def wide_moments(entries: Tensor, num_entries: int) -> tuple[float, float, float]:
    """Return (mean, standard deviation, L2 norm), exact to float64 for all that float64 can hold.

    Args:
        entries: (s,) finite, s >= 1; not all 0.
        num_entries: n >= s; the n - s that are not handed in are 0.

    Example:
        >>> wide_moments(torch.tensor([3e30, 4e30]), 2)[2] > 4.9e30
        True
    """
    pieces = torch.split(entries, PIECE)
    scale = max(float(piece.abs().max()) for piece in pieces)
    mean = math.fsum(float((piece.double() / scale).sum()) for piece in pieces) / num_entries
    square = deviation = 0.0
    for piece in pieces:
        part = piece.double() / scale
        square += float(part.square().sum())
        deviation += float((part - mean).square().sum())
    deviation += (num_entries - entries.numel()) * mean**2
    return scale * mean, scale * math.sqrt(deviation / num_entries), scale * math.sqrt(square)
