"""The statistics that one looks at by hand: mean, standard deviation, extremes, share of zeros, norm, histogram."""

from __future__ import annotations

from torch import nn

from gradguard.gradients.full_statistics import GradientStatistics, measure
from gradguard.model.parameter_names import parameter_names


def gradient_statistics(model: nn.Module, sample: int | None = None, step: int = 0) -> GradientStatistics:
    """Return the statistics of all gradients that a model holds now; call it after backward.

    Args:
        model: parameters without a gradient are left out; complex entries count as pairs of reals, the zeros that a
            sparse gradient does not hold count too.
        sample: entries a tensor that mean, zero ratio and histogram are taken from, such as 8,192, which the policy's
            `statistics: sampled` takes; tensors of at most so many are read whole. None for all.
        step: another step takes another sample.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> model.weight.grad = torch.tensor([[3.0, 0.0]])
        >>> found = gradient_statistics(model)
        >>> found.names, float(found.mean[0]), round(float(found.std[0]), 6), float(found.zero_ratio[0])
        (['weight'], 1.5, 1.5, 0.5)
    """
    if sample is not None and sample < 1:
        raise ValueError(f"sample must be at least 1 entry a tensor, or None for all of them, got {sample}")
    names = parameter_names(model)
    members = [(names[id(p)], p.grad) for p in model.parameters() if p.grad is not None]
    return measure([name for name, _ in members], [grad for _, grad in members], step, sample)
