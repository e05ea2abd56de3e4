"""How a loss reacts to the output and to the targets, and what the output looks like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradguard.checklist.batch import Batch
from gradguard.checklist.facts import Loss, Output
from gradguard.checklist.loss_kind import by_behaviour, class_scores
from gradguard.checklist.statistics import dense, describe


FUNCTIONS = {"LogSoftmax": "log_softmax", "Softmax": "softmax", "Sigmoid": "sigmoid", "Relu": "relu", "Tanh": "tanh"}
VIEWS: tuple[str, ...] = (
    "View",
    "Squeeze",
    "Unsqueeze",
    "Reshape",
    "Flatten",
    "ToCopy",
    "Clone",
    "Transpose",
    "Permute",
    "Select",
)
VIEWS += ("Alias", "UnsafeView", "T")
ROW_SUM_ERROR = 1e-3  # float32 sums to 1 within 1e-6, bfloat16 within 1e-2 of a large softmax
SAME = 1e-5  # relative, of two losses


def last_function(output: Tensor) -> str:
    """Return the last function that was applied to the output, "" if it is none that matters; views are seen through.

    Example:
        >>> scores = torch.zeros(4, 3, requires_grad=True)
        >>> last_function(scores.softmax(1).flatten()), last_function(scores * 2)
        ('softmax', '')
    """
    node: Any = output.grad_fn
    while node is not None:
        name = node.name().partition("Backward")[0]
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        if name not in VIEWS or not node.next_functions:
            return ""
        node = node.next_functions[0][0]
    return ""


def output_facts(output: Tensor, target: Tensor | None) -> Output:
    """Return what a model's only output looks like."""
    found = Output(describe("output", output), last_function(output))
    pair = class_scores(output.detach(), target) if target is not None else None
    scores = dense(pair[0] if pair is not None else output)
    if pair is not None:
        found.classes = scores.shape[-1]
    if scores.ndim >= 2 and scores.shape[-1] > 1 and bool(scores.isfinite().all()):
        found.is_distribution = _sums_to_one(scores) and bool((scores >= 0).all())
        found.is_log_distribution = bool((scores <= 1e-6).all()) and _sums_to_one(scores.exp())
    return found


def _sums_to_one(shares: Tensor) -> bool:
    return bool(((shares.sum(-1) - 1).abs() < ROW_SUM_ERROR).all())


def bad_labels(loss: Loss, loss_fn: object, output: Tensor, target: Tensor, num_classes: int | None) -> tuple[int, ...]:
    """Return labels outside of the classes, some of them; what the loss ignores is none."""
    pair = class_scores(output.detach(), target)
    if pair is None or loss.kind not in ("cross_entropy", "nll", "other"):
        return ()
    scores, labels = pair
    if loss.kind == "other" and scores.shape[1] < 3:  # a single output, or a mean and a variance: no classes
        return ()
    classes = min(scores.shape[1], num_classes or scores.shape[1])
    ignored = int(getattr(loss_fn, "ignore_index", -100))
    outside = labels[((labels < 0) | (labels >= classes)) & (labels != ignored)]
    return tuple(torch.unique(outside)[:8].tolist())


def react(loss: Loss, batch: Batch, output: Tensor, target: Tensor) -> None:
    """Fill in which loss it is and how it reacts to other outputs and targets; the model is not run."""
    fixed = output.detach()

    def evaluate(other: Tensor, targets: Any = None) -> Tensor:
        result: Tensor = batch.loss(other, targets)
        return result

    if loss.kind == "other":
        loss.kind, loss.reduction = by_behaviour(evaluate, fixed, target)
    base, slope = _value_and_slope(evaluate, fixed, None)
    if base is None:
        return
    if target.ndim and len(target) > 1 and not bool((target == target[:1]).all()):
        rolled, rolled_slope = _value_and_slope(evaluate, fixed, target.roll(1, 0))
        loss.reacts_to_order = not (_is_close(base, rolled) and _is_near(slope, rolled_slope))
        alike, alike_slope = _value_and_slope(evaluate, fixed, target[:1].expand_as(target).clone())
        loss.reacts_to_targets = not (_is_close(base, alike) and _is_near(slope, alike_slope))
    if slope is not None and not bool(slope.any()):
        generator = torch.Generator().manual_seed(1)
        moved = fixed + torch.randn(fixed.shape, generator=generator).to(fixed)
        loss.reacts_to_output = not _is_close(base, _value_and_slope(evaluate, moved, None)[0])
    if loss.kind == "mse" and target.numel() > 1:
        spread = (dense(target) - dense(target).mean()).square()
        loss.constant_loss = float(spread.sum() if loss.reduction == "sum" else spread.mean())


def _value_and_slope(evaluate: Any, output: Tensor, targets: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    free = output.clone().requires_grad_()
    try:
        value = evaluate(free, targets)
    except Exception:  # made-up outputs and targets may be refused in any way
        return None, None
    if not isinstance(value, Tensor) or value.numel() != 1:
        return None, None
    if not value.requires_grad:
        return value.detach(), None
    (slope,) = torch.autograd.grad(value, free, allow_unused=True)
    return value.detach(), torch.zeros_like(free) if slope is None else slope


def _is_close(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return False
    return abs(float(one) - float(other)) <= SAME * max(abs(float(one)), 1e-12)


def _is_near(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(torch.linalg.vector_norm(one - other) <= 10 * SAME * torch.linalg.vector_norm(one))
