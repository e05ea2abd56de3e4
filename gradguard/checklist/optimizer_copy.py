"""A copy of an optimizer that moves the same parameters: same class, options and state, without its hooks."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def copy_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer whose steps move the same parameter tensors and leave the original's state alone.

    Step hooks (a guard's among them) and what a scheduler put in place of `step` are not copied. A learning rate of 0
    that a warm-up begins with is replaced with the one that the scheduler starts from.
    """
    memo: dict[int, Any] = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    twin: Optimizer = object.__new__(type(optimizer))
    for name, value in optimizer.__dict__.items():
        if "hooks" in name:
            twin.__dict__[name] = OrderedDict()
        elif not callable(value):
            twin.__dict__[name] = copy.deepcopy(value, memo)
    for group in twin.param_groups:
        if float(group["lr"]) == 0 and float(group.get("initial_lr", 0)) > 0:
            group["lr"] = group["initial_lr"]
    return twin


def take_step(optimizer: Optimizer, closure: Callable[[], Tensor]) -> None:
    """Take one step from the gradients that the parameters hold; optimizers that must have a closure get it."""
    needed = inspect.signature(type(optimizer).step).parameters.get("closure")
    if needed is not None and needed.default is inspect.Parameter.empty:
        optimizer.step(closure)  # type: ignore[arg-type]
    else:
        optimizer.step()
