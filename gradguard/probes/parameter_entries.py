"""The same few entries of many parameters, again and again: all of small tensors, evenly spread ones of large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


NUM_ENTRIES = 4096  # of one tensor: the norm of what they say about a change is off by 1.1 % if that is normal
TOTAL_ENTRIES = 1 << 20  # of all tensors: 4 MB of float32
FEWEST = 256


class ParameterEntries:
    """Copies entries of parameters into one flat tensor for each device and dtype.

    Unlike a random sample this is one kernel for all tensors, and the same entries each time, so that copies taken
    before and after a step can be subtracted. The stride has no factor in common with the length of a row: entries of
    all columns are met.

    Args:
        params: dense tensors of any dtype.

    Attributes:
        rows: positions of the tensors in `params`, in the order of the copies.
        sizes: entries taken of each, in that order.
        factors: number of entries over entries taken, likewise; 1 where all are.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        limit = max(FEWEST, min(NUM_ENTRIES, TOTAL_ENTRIES // max(1, len(params))))
        self._strides = [_stride(param.numel(), param.shape[-1] if param.ndim else 1, limit) for param in params]
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for row, param in enumerate(params):
            if param.numel():
                groups.setdefault((param.device, param.dtype), []).append(row)
        self._groups = list(groups.values())
        self.rows = [row for group in self._groups for row in group]
        self.sizes = [-(-params[row].numel() // self._strides[row]) for row in self.rows]
        self.factors = [params[row].numel() / size for row, size in zip(self.rows, self.sizes, strict=True)]

    @torch.no_grad()
    def copy(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Return a flat copy of the entries as they are now, one tensor for each device and dtype."""
        sizes = iter(self.sizes)
        return [
            torch.cat([_spread(params[row], next(sizes), self._strides[row]) for row in group])
            for group in self._groups
        ]

    def split(self, copies: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return views of each copy, one for each of its tensors."""
        sizes = iter(self.sizes)
        return [
            list(torch.split(copy, [next(sizes) for _ in group]))
            for group, copy in zip(self._groups, copies, strict=True)
        ]


def _spread(param: Tensor, size: int, stride: int) -> Tensor:
    if param.is_contiguous():
        return param.as_strided((size,), (stride,))
    return param.reshape(-1)[::stride]


@cache  # a model has few sizes
def _stride(numel: int, width: int, limit: int) -> int:
    stride = max(1, numel // limit)
    while math.gcd(stride, width) > 1:
        stride -= 1
    return stride
