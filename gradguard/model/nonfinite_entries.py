"""Tensors that hold NaN or infinity by mistake: a mask of minus infinity is none."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


MAX_SAMPLES = 16  # that are told one by one
PROPORTION = 1e4  # of an absurd entry to all others


class BadSamples(NamedTuple):
    """What of a batch is not finite.

    Args:
        entries: that are not.
        samples: positions of the first `MAX_SAMPLES` samples that hold them.
        num_bad: samples that do.
        num_samples: in the batch.
    """

    entries: int
    samples: tuple[int, ...]
    num_bad: int
    num_samples: int


class Badness(IntEnum):
    """How sure it is that a tensor is not as it should be.

    Minus infinity beside nothing but one other value is a mask, and meant to be; beside others it may be one that was
    added to scores, or the log of 0.
    """

    NONE = 0
    MAYBE = 1
    SURE = 2


def badness(tensor: Tensor) -> Badness:
    """Return whether a floating tensor holds NaN or infinity by mistake.

    Example:
        >>> rows = [0.0, -math.inf], [0.0, 1.0, -math.inf], [0.0, math.nan]
        >>> [badness(torch.tensor(row)).name for row in rows]
        ['NONE', 'MAYBE', 'SURE']
    """
    is_finite = tensor.isfinite()
    if bool(is_finite.all()):
        return Badness.NONE
    if not bool((is_finite | (tensor == -math.inf)).all()):
        return Badness.SURE
    rest = tensor[is_finite]
    return Badness.MAYBE if rest.numel() and bool(rest.min() != rest.max()) else Badness.NONE


def bad_samples(tensor: Tensor) -> BadSamples:
    """Return which samples (rows of the first dimension) hold NaN or infinity.

    Example:
        >>> bad_samples(torch.tensor([[0.0, 1.0], [math.nan, 1.0]]))
        BadSamples(entries=1, samples=(1,), num_bad=1, num_samples=2)
    """
    bad = ~tensor.isfinite()
    rows = bad.reshape(len(bad), -1).any(dim=1).nonzero().flatten()
    return BadSamples(int(bad.sum()), tuple(rows[:MAX_SAMPLES].tolist()), len(rows), len(bad))


def absurd_entry(tensor: Tensor) -> tuple[float, float] | None:
    """Return the sizes of the largest entry and of the largest usual one, if the first cannot have been trained.

    That is an entry whose square is beyond its type, while 99% of the others are `PROPORTION` times smaller at least.

    Args:
        tensor: floating, finite, any shape.

    Example:
        >>> absurd_entry(torch.full((200,), 0.5).index_fill(0, torch.tensor([3]), 2.0**120))
        (1.329227995784916e+36, 0.5)
    """
    if tensor.numel() < 2:
        return None
    lowest, highest = torch.aminmax(tensor)
    largest = max(-float(lowest), float(highest))
    if not math.sqrt(torch.finfo(tensor.dtype).max) < largest < math.inf:
        return None
    sizes = tensor.abs()
    usual = sizes[sizes < largest / PROPORTION]
    if usual.numel() < 0.99 * (tensor.numel() - 1):
        return None
    return largest, float(usual.max())
