"""What is in the model's parameters before the first step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.checklist.facts import Parameter
from gradguard.checklist.probes import WEIGHTED
from gradguard.checklist.statistics import dense, norm_of, num_nonfinite
from gradguard.model.parameter_names import parameter_names


MAX_COLUMNS = 512  # about as many of a row are compared
ROUNDING = 1e-4  # of the largest row: what tells different units apart, and equal ones not


def parameter_facts(model: nn.Module, optimizer: Optimizer) -> tuple[list[Parameter], list[nn.Parameter]]:
    """Return the facts about the model's parameters, then about those that only the optimizer has, and the tensors."""
    memberships: dict[int, int] = {}
    in_optimizer = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in in_optimizer:
        memberships[id(parameter)] = memberships.get(id(parameter), 0) + 1
    names = parameter_names(model)
    owners: dict[int, nn.Module] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and (id(parameter) not in owners or isinstance(module, WEIGHTED)):
                owners[id(parameter)] = module
    found, tensors = [], []
    for parameter in model.parameters():
        name, owner = names[id(parameter)], owners[id(parameter)]
        facts = _facts(name, owner, parameter)
        facts.memberships = memberships.get(id(parameter), 0)
        found.append(facts)
        tensors.append(parameter)
    foreign = {id(p): p for p in in_optimizer if id(p) not in names}
    for index, parameter in enumerate(foreign.values()):
        facts = _facts(f"optimizer parameter {index}", nn.Module(), parameter)
        facts.is_foreign, facts.memberships = True, memberships[id(parameter)]
        found.append(facts)
        tensors.append(parameter)
    return found, tensors


@torch.no_grad()
def _facts(name: str, owner: nn.Module, parameter: Tensor) -> Parameter:
    facts = Parameter(name, type(owner).__name__, tuple(parameter.shape), parameter.requires_grad, 0)
    facts.is_weight = isinstance(owner, WEIGHTED) and parameter is owner.weight
    if facts.is_weight:
        units = as_rows(owner, parameter)
        facts.fan_in = units.shape[1]
    if parameter.numel():
        entries = dense(parameter)
        facts.mean, facts.std = float(entries.mean()), float(entries.std(correction=0))
        if float(entries.max()) == float(entries.min()):
            facts.std = 0.0  # a mean of equal numbers is off by a rounding
    facts.norm, facts.nonfinite = norm_of(parameter), num_nonfinite(parameter)
    return facts


def as_rows(owner: nn.Module, weight: Tensor) -> Tensor:
    """Return a weight with a row for each output unit: (units, fan_in)."""
    if isinstance(owner, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        weight = weight.transpose(0, 1)
    return weight.reshape(len(weight), -1)


@torch.no_grad()
def share_of_twins(owner: nn.Module, weight: Tensor, grad: Tensor) -> float:
    """Return the share of the units whose weights and gradients equal those of another unit, within rounding.

    Three random projections of some columns stand for a unit: equal units have equal ones.
    """
    parts = []
    for entries in (weight, grad):
        rows = as_rows(owner, dense(entries))
        rows = rows[:, :: max(1, rows.shape[1] // MAX_COLUMNS)].double()
        parts.append(rows / rows.norm(dim=1).max().clamp_min(1e-300))
    units = torch.cat(parts, dim=1)
    if len(units) < 2 or not bool(units.isfinite().all()):
        return 0.0
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(units.shape[1], 3, generator=generator, dtype=torch.float64).to(units.device)
    marks = (units @ directions).mul(1 / ROUNDING).round()
    _, groups = torch.unique(marks, dim=0, return_inverse=True)
    return float((groups.bincount()[groups] > 1).float().mean())
