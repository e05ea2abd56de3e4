"""Norm, largest and smallest entry of gradients, read in pieces that stay in the processor's cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


PIECE = 1 << 20  # entries; 4 MB of float32 stay in the last cache, and more pieces would cost more waiting for threads
BLOCK = 1 << 13  # entries whose squares are added in float32: off by 1e-5 at most, 4e-4 for a piece as a whole


def extremes(entries: Tensor) -> Tensor:
    """Return (3,) float64 (NaN, max, min); small tensors in host memory go through numpy, whose calls cost less."""
    if entries.is_cpu and entries.numel() <= PIECE and entries.dtype in (torch.float32, torch.float64):
        values = entries.numpy()
        return torch.tensor([math.nan, values.max(), values.min()], dtype=torch.float64)
    pieces = [torch.stack([piece.amax(), -piece.amin()]) for piece in pieces_of(entries)]  # aminmax takes longer
    largest, smallest = torch.stack(pieces).double().amax(0)
    return torch.stack([torch.full_like(largest, math.nan), largest, -smallest])


def extent_of(entries: Tensor) -> Tensor:
    """Return (3,) float64 norm, largest and smallest entry of a flat tensor."""
    return join_extents([extent_of_piece(piece) for piece in pieces_of(entries)])


def extent_of_piece(piece: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return norm, smallest and largest entry of a flat tensor, () each."""
    return row_norms(piece[None])[0], piece.amin(), piece.amax()  # torch's aminmax takes longer than both


def join_extents(extents: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return (3,) float64 norm, largest and smallest entry of a tensor, from those of its pieces."""
    norms, smallest, largest = torch.stack([part for extent in extents for part in extent]).double().view(-1, 3).T
    return torch.stack([norms.square().sum().sqrt(), largest.amax(), smallest.amin()])


def row_norms(table: Tensor) -> Tensor:
    """Return the norm of each row (R, k): by blocks, since torch adds all squares of a row into a few float32 sums."""
    norms = table
    if table.shape[1] >= 2 * BLOCK:
        num_whole = table.shape[1] // BLOCK * BLOCK
        blocks = table[:, :num_whole].reshape(len(table), -1, BLOCK)
        rest = torch.linalg.vector_norm(table[:, num_whole:], dim=1, keepdim=True)
        norms = torch.cat([torch.linalg.vector_norm(blocks, dim=2), rest], dim=1)
    found: Tensor = torch.linalg.vector_norm(norms, dim=1)
    return found


def pieces_of(entries: Tensor) -> Iterator[Tensor]:
    """Yield a flat tensor in pieces, as float32 or float64."""
    wide = wide_dtype(entries.dtype)
    for piece in torch.split(entries, PIECE):
        yield piece.to(wide)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of a dtype are reduced."""
    return dtype if dtype == torch.float64 else torch.float32
