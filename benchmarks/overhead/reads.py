"""The physical limit: how long it takes to read the gradients once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


SECONDS = 0.1
MIN_REPEATS = 5


@dataclass(frozen=True)
class Read:
    """Two ways to read every gradient once, microseconds (medians).

    Args:
        norms: `torch._foreach_norm`, one number a tensor.
        total: `sum` of one tensor that holds as many bytes: what the memory gives.
    """

    norms: float
    total: float


def read_speed(gradients: Sequence[Tensor]) -> Read:
    """Measure both reads, in turns."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    tensors = list(gradients)
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(times[0]) < MIN_REPEATS or time.perf_counter() - start < SECONDS:
        times[0].append(_time(lambda: torch._foreach_norm(tensors)))
        times[1].append(_time(lambda: flat.sum()))
    norms, total = (1e6 * float(np.median(taken)) for taken in times)
    return Read(norms, total)


def _time(read: Callable[[], object]) -> float:
    start = time.perf_counter()
    read()
    return time.perf_counter() - start
