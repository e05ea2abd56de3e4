"""What optimizers remember of single parameters: damped, forgotten, or forgotten for some entries only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Adagrad, Optimizer


# By the names that torch's optimizers and those after their pattern use.
FIRST_MOMENTS = frozenset({"exp_avg", "exp_avg_slow", "exp_avg_diff", "momentum_buffer", "momentum"})
SECOND_MOMENTS = frozenset({"exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "sum", "acc_delta"})
STEP_SIZES = "step_size"  # Rprop's, entry by entry
AVERAGES = "ax"  # ASGD's mean of the weights themselves
MEMORIES = 5.0  # of the second moment, that a learning rate needs to come back after it was forgotten
DEFAULT_REWARM = 100  # steps, for optimizers without a second moment


@torch.no_grad()
def damp_first_moments(optimizer: Optimizer, params: Sequence[Tensor], factor: float) -> int:
    """Multiply the first moments (momentum) of parameters by a factor, in place; second moments and counters stay.

    Args:
        optimizer: whose state it is.
        params: of the optimizer.
        factor: >= 0; 0 forgets the direction and keeps the size.

    Returns:
        How many tensors there were; 0 where the optimizer keeps none, or has taken no step.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        >>> weight.grad = torch.ones(2)
        >>> optimizer.step()
        >>> damp_first_moments(optimizer, [weight], 0.5), optimizer.state[weight]["momentum_buffer"]
        (1, tensor([0.5000, 0.5000]))
    """
    moments = [
        value
        for param in params
        for name, value in optimizer.state.get(param, {}).items()
        if name in FIRST_MOMENTS and isinstance(value, Tensor)
    ]
    for moment in moments:
        moment.mul_(factor)
    return len(moments)


def reset_state(optimizer: Optimizer, params: Sequence[Tensor]) -> int:
    """Make an optimizer forget parameters, as if it had never taken a step with them; return how many it knew.

    LBFGS has one state for all of its parameters and forgets them all. Adagrad, which makes its state at the start,
    gets it back as it was then.

    Args:
        optimizer: that forgets.
        params: of the optimizer.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> optimizer = torch.optim.Adam([weight])
        >>> weight.grad = torch.ones(2)
        >>> optimizer.step()
        >>> reset_state(optimizer, [weight]), len(optimizer.state)
        (1, 0)
    """
    if isinstance(optimizer, LBFGS) and params:
        known = len(optimizer.state)
        optimizer.state.clear()
        return known
    count = 0
    for param in params:
        state = optimizer.state.get(param)
        if not state:
            continue
        count += 1
        if isinstance(optimizer, Adagrad):
            state["step"].zero_()
            state["sum"].fill_(optimizer.defaults["initial_accumulator_value"])
        else:
            del optimizer.state[param]
    return count


@torch.no_grad()
def reset_entries(optimizer: Optimizer, param: Tensor, where: Tensor) -> None:
    """Make an optimizer forget some entries of a parameter, while the counters of its steps go on.

    What is of the parameter's own shape becomes 0 there, with three exceptions. Second moments become the mean of the
    entries that stay: with the bias correction long over, ones of 0 would make the next steps several times too long.
    Rprop's step sizes become the learning rate, and ASGD's averages the weights.

    Args:
        optimizer: whose state it is.
        param: of the optimizer, as it is now.
        where: bool, of its shape; when it is true everywhere the whole state is forgotten.
    """
    if bool(where.all()):
        reset_state(optimizer, [param])
        return
    for name, value in optimizer.state.get(param, {}).items():
        if not isinstance(value, Tensor) or value.shape != param.shape or not bool(where.any()):
            continue
        if name in SECOND_MOMENTS:
            value[where] = value[~where].mean()
        elif name == STEP_SIZES:
            value[where] = float(_group_of(optimizer, param)["lr"])
        elif name == AVERAGES:
            value[where] = param[where].to(value.dtype)
        else:
            value[where] = 0


def rewarm_steps(optimizer: Optimizer, params: Sequence[Tensor]) -> int:
    """Return over how many steps the learning rate of forgotten parameters has to come back at least: 5/(1 - beta2).

    The first updates after a reset have the size of the sign of the gradient, whatever the second moment was. beta2 is
    Adam's, or its like in RMSprop (alpha) and Adadelta (rho); 100 steps without one.

    Source: the warm-up rule in BigScience's log of BLOOM-104B, after which even 300 steps did not save a run at 0.95.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> rewarm_steps(torch.optim.Adam([weight], betas=(0.9, 0.95)), [weight])
        100
    """
    decays = []
    for param in params:
        group = _group_of(optimizer, param)
        if "betas" in group:
            decays.append(float(group["betas"][1]))
        elif isinstance(optimizer, torch.optim.RMSprop):
            decays.append(float(group["alpha"]))
        elif "rho" in group:
            decays.append(float(group["rho"]))
    longest = max((decay for decay in decays if decay < 1.0), default=None)
    return DEFAULT_REWARM if longest is None else math.ceil(round(MEMORIES / (1.0 - longest), 6))


def _group_of(optimizer: Optimizer, param: Tensor) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(known is param for known in group["params"]))
