"""Steps that are tried and taken back: along the gradient, with the user's optimizer, and until one batch is learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradguard.checklist.facts import Parameter, Trial
from gradguard.checklist.optimizer_copy import copy_optimizer, take_step
from gradguard.checklist.passes import Passes
from gradguard.checklist.statistics import norm_of
from gradguard.checklist.weights import share_of_twins


NUM_STEPS = 3  # opens a gate behind a zero-initialised head: step 1 moves the head, 2 the gate, 3 what is behind it
SLOPE_SIZES = (1e-3, 1e-4)  # of the norm of all weights
MIN_CHANGE, MIN_ROUGH_CHANGE = 1e-5, 2e-2  # of the loss: what float32, and what half precision, tells from rounding
Gradients = Sequence[Tensor | None]


def slope_ratios(passes: Passes, loss: float, gradients: Gradients) -> dict[float, float]:
    """Return by step size how much of the promised fall a small step along minus the gradient brings.

    1 where the loss is smooth, -1 where the gradient has the wrong sign. Sizes whose promise drowns in rounding are
    left out, and so are all if the same weights do not give the same loss twice.
    """
    pairs = [(p, g) for p, g in zip(passes.parameters, gradients, strict=True) if g is not None]
    norm = math.hypot(*(norm_of(g) for _, g in pairs)) if pairs else 0.0
    weight = math.hypot(*(norm_of(p) for p, _ in pairs)) if pairs else 0.0
    if not (0 < norm < math.inf and 0 < weight < math.inf) or passes.value() != loss:
        return {}
    found = {}
    is_rough = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    is_rough = is_rough or any(p.dtype in (torch.float16, torch.bfloat16) for p, _ in pairs)
    least = MIN_ROUGH_CHANGE if is_rough else MIN_CHANGE
    for size in SLOPE_SIZES:
        length = size * weight / norm
        promised = length * norm * norm
        if promised < least * max(abs(loss), 1e-6):
            continue
        with torch.no_grad():
            for parameter, gradient in pairs:
                parameter.sub_(gradient.to_dense() if gradient.is_sparse else gradient, alpha=length)
        found[size] = (loss - passes.value()) / promised
        passes.remembered.reset_parameters()
    return found


def try_steps(
    passes: Passes, optimizer: Optimizer, facts: Sequence[Parameter], loss: float, gradients: Gradients
) -> Trial:
    """Take a few steps with a copy of the optimizer; fill in what they show about each parameter.

    Args:
        passes: runs the model.
        optimizer: the user's; it is not touched.
        facts: of the parameters, in the order of `passes.parameters`.
        loss: before the first step.
        gradients: likewise.
    """
    twin = copy_optimizer(optimizer)
    before = [p.detach().clone() for p in passes.parameters]
    losses, promised = [loss], 0.0
    for step in range(NUM_STEPS):
        _step(passes, twin, gradients)
        if step == 0:
            promised = _compare(passes, facts, before, gradients)
            del before
        value, gradients = passes.value_and_gradients()
        losses.append(value)
        if not math.isfinite(value):
            break
        for fact, gradient in zip(facts, gradients, strict=True):
            fact.has_later_gradient |= gradient is not None and norm_of(gradient) > 0
        look_for_twins(passes, facts, gradients)
    passes.remembered.reset_parameters()
    return Trial(tuple(losses), promised, slope_ratios={})


def look_for_twins(passes: Passes, facts: Sequence[Parameter], gradients: Gradients) -> None:
    """Lower each weight's share of twins to what is left of it with these gradients."""
    owners = {id(m._parameters.get("weight")): m for m in passes.model.modules()}
    for fact, parameter, gradient in zip(facts, passes.parameters, gradients, strict=True):
        if fact.is_weight and fact.twins > 0:
            grad = torch.zeros_like(parameter) if gradient is None else gradient
            fact.twins = min(fact.twins, share_of_twins(owners[id(parameter)], parameter, grad))


def overfit(
    passes: Passes, optimizer: Optimizer, num_steps: int, on_step: Callable[[int, float], None]
) -> tuple[float, ...]:
    """Train a copy of the optimizer on this one batch and return the loss before every step and after the last."""
    passes = replace(passes, is_repeated=False)  # dropout is drawn anew at each step, as in training
    twin = copy_optimizer(optimizer)
    losses = []
    for step in range(num_steps):
        value, gradients = passes.value_and_gradients()
        losses.append(value)
        on_step(step, value)
        if not math.isfinite(value):
            break
        _step(passes, twin, gradients)
    else:
        losses.append(passes.value())
    passes.remembered.reset_parameters()
    return tuple(losses)


def _step(passes: Passes, twin: Optimizer, gradients: Gradients) -> None:
    for parameter, gradient in zip(passes.parameters, gradients, strict=True):
        parameter.grad = gradient

    def closure() -> Tensor:
        loss = passes.loss(passes.output())
        for parameter, gradient in zip(passes.parameters, passes.gradients(loss), strict=True):
            parameter.grad = gradient
        return loss.detach()

    take_step(twin, closure)


@torch.no_grad()
def _compare(passes: Passes, facts: Sequence[Parameter], before: Sequence[Tensor], gradients: Gradients) -> float:
    promised = 0.0
    for fact, parameter, old, gradient in zip(facts, passes.parameters, before, gradients, strict=True):
        change = parameter.detach() - old
        if fact.norm > 0:
            fact.update_ratio = norm_of(change) / fact.norm
        if gradient is not None:
            whole = gradient.to_dense() if gradient.is_sparse else gradient
            promised += float((whole.float() * change.float()).sum()) if not whole.is_complex() else 0.0
    return promised
