"""Finds the tensors of a model that a fault strikes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradguard.errors import UsageError, did_you_mean
from gradguard.faults.corruption import check_dtype
from gradguard.faults.fault import Fault
from gradguard.policy.patterns import select, unmatched


def match_parameters(fault: Fault, named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return the parameters that the fault strikes, by name.

    Raises:
        UsageError: a pattern matches none, the matching ones get no gradient, or their dtype does not fit.
    """
    names = list(named)
    if problems := unmatched(fault.patterns, names):
        raise UsageError("; ".join(problems))
    selected = [names[index] for index in select(fault.patterns, names)]
    found = {name: named[name] for name in selected if _can_be_struck(named[name], fault)}
    if not found:
        wanted = "requires a gradient" if fault.where == "gradient" else "holds floating-point numbers"
        raise UsageError(f"no parameter that matches {', '.join(map(repr, fault.patterns))} {wanted}; strike others")
    if fault.where != "lr":
        for name, parameter in found.items():
            check_dtype(parameter.dtype, fault, f"parameter {name!r}")
    return found


def _can_be_struck(parameter: nn.Parameter, fault: Fault) -> bool:
    is_floating = parameter.is_floating_point() or parameter.is_complex()
    return is_floating and (parameter.requires_grad or fault.where != "gradient")


def find_module(fault: Fault, model: nn.Module) -> nn.Module:
    """Return the module whose input the fault corrupts.

    Raises:
        UsageError: the model has no module of that name.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if fault.module not in modules:
        raise UsageError(f"the model has no module {fault.module!r}{did_you_mean(fault.module, modules)}")
    return modules[fault.module]


def clone_floating(value: Any, clones: list[torch.Tensor]) -> Any:
    """Return the same structure with every floating tensor cloned, and collect the clones."""
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        clones.append(value.clone())
        return clones[-1]
    if isinstance(value, dict):
        return {key: clone_floating(item, clones) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [clone_floating(item, clones) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def check_groups(parameters: Mapping[Fault, dict[str, nn.Parameter]], optimizer: Optimizer) -> None:
    """Refuse an "lr" fault whose parameters the optimizer does not hold.

    Raises:
        UsageError: no param group holds any of them.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for fault, named in parameters.items():
        if fault.where == "lr" and not any(id(parameter) in held for parameter in named.values()):
            raise UsageError(
                f"no param group of the optimizer holds a parameter matching {', '.join(map(repr, fault.patterns))}; "
                "an 'lr' fault strikes the groups that hold one"
            )
