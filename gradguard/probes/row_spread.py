"""How far the rows of weights differ: units whose rows are equal compute the same, and learn the same."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradguard.evidence.stats import FloatArray
from gradguard.gradients.sharded import is_sharded


MOST = 256  # rows and columns that are looked at, evenly: rows that are equal are so in any of them


@torch.no_grad()
def row_spreads(params: Sequence[Tensor]) -> FloatArray:
    """Return how far the rows of each parameter are from their mean row, with one transfer a device.

    The root mean square distance from the mean row over that of the entries, over up to 256 rows and columns: 0 when
    all rows are equal, 1 when they have nothing in common. NaN when all entries are 0, and for what has fewer than two
    dimensions or two rows, is no dense floating tensor or lies on several ranks.

    Args:
        params: P tensors.

    Returns:
        (P,) float32, in [0, 1].

    Example:
        >>> row_spreads([torch.ones(3, 2), torch.tensor([[1.0], [-1.0]]), torch.ones(4)]).tolist()
        [0.0, 1.0, nan]
    """
    spreads: FloatArray = np.full(len(params), math.nan, dtype=np.float32)
    alike: dict[tuple[torch.device, torch.dtype, torch.Size], list[int]] = defaultdict(list)
    for row, param in enumerate(params):
        if is_readable(param):
            alike[param.device, param.dtype, param.shape].append(row)
    found: dict[torch.device, list[tuple[list[int], Tensor]]] = defaultdict(list)
    for (device, _, shape), rows in alike.items():
        strides = -(-shape[0] // MOST), -(-math.prod(shape[1:]) // MOST)
        some = torch.stack([_some(params[row], *strides) for row in rows]).float()
        distance = some.var(1, unbiased=False).mean(1).sqrt()
        found[device].append((rows, distance / some.square().mean((1, 2)).sqrt()))
    for measured in found.values():
        rows = [row for some, _ in measured for row in some]
        spreads[rows] = torch.cat([values for _, values in measured]).cpu().numpy()
    return spreads


def _some(param: Tensor, row_stride: int, column_stride: int) -> Tensor:
    """Return a view (rows, columns) of every so many-th row and column; a view costs as much as a small sum."""
    matrix = param if param.ndim == 2 else param.flatten(1)
    return matrix if row_stride == column_stride == 1 else matrix[::row_stride, ::column_stride]


def is_readable(param: Tensor) -> bool:
    """Return whether a parameter has rows to compare, here."""
    return (
        param.ndim >= 2
        and param.is_floating_point()
        and param.layout == torch.strided
        and param.device.type != "meta"
        and not isinstance(param, torch.nn.UninitializedParameter)
        and not is_sharded(param)
        and param.shape[0] > 1
        and param.numel() > 0
    )
