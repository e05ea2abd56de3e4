"""Which loss a function is: by its type, or by what it gives on made-up outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradguard.checklist.facts import LossKind


KINDS: dict[Any, LossKind] = {
    nn.CrossEntropyLoss: "cross_entropy",
    functional.cross_entropy: "cross_entropy",
    nn.NLLLoss: "nll",
    functional.nll_loss: "nll",
    nn.BCEWithLogitsLoss: "bce_with_logits",
    functional.binary_cross_entropy_with_logits: "bce_with_logits",
    nn.BCELoss: "bce",
    functional.binary_cross_entropy: "bce",
    nn.MSELoss: "mse",
    functional.mse_loss: "mse",
    nn.L1Loss: "l1",
    functional.l1_loss: "l1",
    nn.SmoothL1Loss: "l1",
    functional.smooth_l1_loss: "l1",
    nn.HuberLoss: "l1",
    functional.huber_loss: "l1",
}
TOLERANCE = 1e-3  # relative: bfloat16 is not told apart, half a dozen losses are
RAW: tuple[LossKind, ...] = ("cross_entropy", "nll", "bce_with_logits", "mse", "l1")  # take outputs of any sign
Evaluate = Callable[[Tensor], Tensor]  # output of the model's shape -> ()


def by_type(loss_fn: object) -> tuple[LossKind, str]:
    """Return kind and reduction of one of torch's own losses, ("other", "") of anything else."""
    for known, kind in KINDS.items():
        if loss_fn is known or (isinstance(known, type) and isinstance(loss_fn, known)):
            return kind, str(getattr(loss_fn, "reduction", "mean"))
    return "other", ""


def class_scores(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return scores (N, C) and labels (N,) where the shapes are those of a classification, else None."""
    if target.is_floating_point() or target.is_complex() or output.ndim < 2:
        return None
    if output.ndim == target.ndim + 1 and output.shape[:1] + output.shape[2:] == target.shape:
        return output.movedim(1, -1).reshape(-1, output.shape[1]), target.reshape(-1).long()
    if output.shape[:-1] == target.shape or (output.ndim == 2 and target.shape == (len(output), 1)):
        return output.reshape(-1, output.shape[-1]), target.reshape(-1).long()
    if output.numel() // output.shape[-1] == target.numel():
        return output.reshape(-1, output.shape[-1]), target.reshape(-1).long()
    return None


@torch.no_grad()
def by_behaviour(evaluate: Evaluate, output: Tensor, target: Tensor) -> tuple[LossKind, str]:
    """Return kind and reduction of the loss that gives the same numbers on made-up outputs, else ("other", "").

    Args:
        evaluate: the user's loss as a function of the output.
        output: of the model: gives shape, dtype and device.
        target: the user's.
    """
    generator = torch.Generator().manual_seed(0)
    made_up = [torch.randn(output.shape, generator=generator).to(output) for _ in range(2)]
    probable = [torch.rand(output.shape, generator=generator).mul(0.9).add(0.05).to(output) for _ in range(2)]
    for trials, kinds in ((made_up, RAW), (probable, ("bce",))):
        found = [_number(evaluate, trial) for trial in trials]
        for kind, reduction in itertools.product(kinds, ("mean", "sum")):
            expected = [_expected(kind, reduction, trial.float(), target) for trial in trials]
            if all(map(_agree, found, expected)):
                return kind, reduction
    return "other", ""


def _agree(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None:
        return False
    return abs(found - expected) <= TOLERANCE * max(abs(expected), 1e-3)


def _number(evaluate: Evaluate, output: Tensor) -> float | None:
    try:
        return float(evaluate(output))
    except Exception:  # the user's loss may refuse made-up outputs in any way
        return None


def _expected(kind: str, reduction: str, output: Tensor, target: Tensor) -> float | None:
    if kind in ("cross_entropy", "nll"):
        pair = class_scores(output, target)
        function = functional.cross_entropy if kind == "cross_entropy" else functional.nll_loss
        valid = pair is not None and bool(((pair[1] >= 0) & (pair[1] < pair[0].shape[1])).all())
        return float(function(*pair, reduction=reduction)) if valid and pair is not None else None
    if output.numel() != target.numel():
        return None
    if kind in ("bce_with_logits", "bce") and not bool(((target >= 0) & (target <= 1)).all()):
        return None
    functions: dict[str, Callable[..., Tensor]] = {
        "bce_with_logits": functional.binary_cross_entropy_with_logits,
        "bce": functional.binary_cross_entropy,
        "mse": functional.mse_loss,
        "l1": functional.l1_loss,
    }
    return float(functions[kind](output.reshape(-1), target.reshape(-1).to(output), reduction=reduction))
