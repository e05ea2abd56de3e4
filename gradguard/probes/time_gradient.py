"""How much of the gradient at the last time step of a recurrent module is left at its first."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


MAX_ROWS = 8
MAX_STEPS = 256  # a longer sequence is cut to its last so many steps
MIN_STEPS = 8  # of a shorter one nothing is said
SMALLEST = float(np.finfo(np.float32).tiny)
_SEED = 0x74696D65


class Sequence(NamedTuple):
    """A few rows of what a recurrent module was given.

    Args:
        values: (steps, rows, features), a copy.
        state: what it started from, a copy; None for zeros.
    """

    values: Tensor
    state: Any


@torch.no_grad()
def sample_sequence(module: nn.RNNBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence | None:
    """Copy a few rows of a recurrent module's input; None for what is no plain sequence (packed ones, short ones)."""
    given = [*args, *kwargs.values()]
    if type(module) not in (nn.RNN, nn.LSTM, nn.GRU) or not given or not isinstance(given[0], Tensor):
        return None
    values = given[0].detach()
    if values.ndim == 2:
        values = values.unsqueeze(1)
    elif module.batch_first:
        values = values.transpose(0, 1)
    if len(values) < MIN_STEPS or not values.numel():
        return None
    state = given[1] if len(given) > 1 else None
    if len(values) > MAX_STEPS or given[0].ndim == 2:
        state = None
    values = values[-MAX_STEPS:, :MAX_ROWS].clone()
    if isinstance(state, tuple):
        state = tuple(part.detach()[:, :MAX_ROWS].clone() for part in state)
    elif state is not None:
        state = state.detach()[:, :MAX_ROWS].clone()
    return Sequence(values, state)


def gradient_over_time(module: nn.RNNBase, sequence: Sequence) -> Tensor:
    """Return the norm of the gradient of the last output with regard to the input at each step: (steps,) float32.

    The module runs once more over these rows, without dropout: no random number is drawn, no hook runs, no gradient is
    stored. The output's gradient is the same pseudo-random vector in every process.
    """
    twin = copy.copy(module)  # shares the weights
    twin.__dict__ = dict(module.__dict__)
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        twin.__dict__[hooks] = OrderedDict()
    twin.__dict__.update(dropout=0.0, batch_first=False, training=True)
    with torch.enable_grad():
        values = sequence.values.requires_grad_()
        output, _ = twin(values, sequence.state)
        width = module.proj_size or module.hidden_size  # of two directions, the one that has read the sequence
        generator = torch.Generator().manual_seed(_SEED)
        direction = torch.randn(width, generator=generator).to(output)
        last = (output[-1, :, :width] * direction).sum()
        (gradient,) = torch.autograd.grad(last, values)
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=(1, 2), dtype=torch.float32)
    return norms


def remaining(norms: npt.NDArray[np.float64]) -> float:
    """Return how much of the gradient at the last steps is left at the first, in (0, inf); NaN where it is not finite.

    Args:
        norms: (steps,) what `gradient_over_time` returned; the first and the last sixteenth of the steps are compared.

    Example:
        >>> remaining(np.array([0.25] + [1.0] * 15))
        0.25
    """
    few = max(1, len(norms) // 16)
    last = float(norms[-few:].mean())
    return max(float(norms[:few].mean()) / last, SMALLEST) if last > 0.0 else math.nan
