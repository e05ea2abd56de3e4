"""The statistics that one looks at by hand: mean, standard deviation, largest, smallest, share of zeros, norm.

Each is one pass over the gradients; nothing is copied to the host but the results.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gradguard.functional import dense_values, grad_norms
from gradguard.parameter_names import parameter_names


class GradientStatistics(NamedTuple):
    """Statistics of every parameter's gradient, as arrays over the P parameters that have one.

    Args:
        names: P fully qualified names.
        mean, std: (P,) float64 of the entries; std divides by their number.
        max, min: (P,) float64.
        zero_ratio: (P,) float64, share of entries that are exactly 0, in [0, 1].
        norm: (P,) float64 L2 norms.
    """

    names: list[str]
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    max: npt.NDArray[np.float64]
    min: npt.NDArray[np.float64]
    zero_ratio: npt.NDArray[np.float64]
    norm: npt.NDArray[np.float64]


@torch.no_grad()
def gradient_statistics(model: nn.Module) -> GradientStatistics:
    """Return the statistics of all gradients that a model holds now; call it after backward.

    Args:
        model: parameters without a gradient are left out; complex entries count as pairs of reals.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> model.weight.grad = torch.tensor([[3.0, 0.0]])
        >>> found = gradient_statistics(model)
        >>> found.names, float(found.mean[0]), float(found.std[0]), float(found.zero_ratio[0])
        (['weight'], 1.5, 1.5, 0.5)
    """
    names = parameter_names(model)
    members = [(names[id(p)], dense_values(p.grad)) for p in model.parameters() if p.grad is not None]
    values = [value for _, value in members]
    if not values:
        empty = np.zeros(0)
        return GradientStatistics([], empty, empty, empty, empty, empty, empty)
    count = np.array([max(1, value.numel()) for value in values], dtype=np.float64)
    norm = grad_norms(values).astype(np.float64)
    columns = [
        torch.stack([*_moments(value), *_extremes(value), value.count_nonzero().double()]).cpu() for value in values
    ]
    std, mean, largest, smallest, nonzero = torch.stack(columns).numpy().T
    return GradientStatistics([name for name, _ in members], mean, std, largest, smallest, 1.0 - nonzero / count, norm)


def _moments(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (std, mean) as float64, accumulated in float32 at least."""
    if not value.numel():
        return (torch.tensor(math.nan, dtype=torch.float64),) * 2
    std, mean = torch.std_mean(value if value.dtype == torch.float64 else value.float(), correction=0)
    return std.double(), mean.double()


def _extremes(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not value.numel():
        return (torch.tensor(math.nan, dtype=torch.float64),) * 2
    smallest, largest = value.aminmax()
    return largest.double(), smallest.double()
