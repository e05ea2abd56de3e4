"""The norms of many small tensors in host memory: laid end to end, they take a few calls instead of one each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


MIN_TENSORS = 64
MAX_MEAN = 4096  # entries a tensor; copying larger ones takes longer than a call
MAX_TOTAL = 1 << 22  # entries, 16 MB


class FlatNorms:
    """Measures the gradients of parameters of these sizes.

    Args:
        sizes: entries of each, >= 1.

    Example:
        >>> FlatNorms([2, 1]).measure([torch.tensor([3.0, 4.0]), torch.tensor([[-2.0]])])
        tensor([5., 2.])
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._starts: npt.NDArray[np.int64] = np.cumsum([0, *sizes[:-1]])

    @classmethod
    def of(cls, params: Sequence[Tensor]) -> FlatNorms | None:
        """Return what measures the gradients of these, None where one call a tensor takes no longer."""
        sizes = [param.numel() for param in params]
        is_host = all(param.is_cpu and param.dtype == torch.float32 for param in params)
        if not is_host or len(sizes) < MIN_TENSORS or min(sizes) < 1 or sum(sizes) > MAX_TOTAL:
            return None
        return cls(sizes) if sum(sizes) <= MAX_MEAN * len(sizes) else None

    def measure(self, grads: list[Tensor]) -> Tensor:
        """Return the (P,) float32 L2 norms; squares are added in pairs of pairs, off by less than 1e-6.

        Raises:
            TypeError, RuntimeError: a gradient is None or not dense.
        """
        flat = torch._C._nn.flatten_dense_tensors(grads).numpy()
        with np.errstate(all="ignore"):  # NaN and infinity are welcome
            np.multiply(flat, flat, out=flat)
            return torch.from_numpy(np.sqrt(np.add.reduceat(flat, self._starts)))
