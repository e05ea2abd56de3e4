"""How much of every weight the optimizer's decay takes off in a step."""

from __future__ import annotations

from torch.optim import SGD, Optimizer


DECOUPLED = ("AdamW", "Muon", "Lion")  # in the name of a class: its decay is no part of the gradient


def shrinkage(optimizer: Optimizer) -> float:
    """Return the largest share of a weight that decay takes off per step, over the param groups; 0 where there is none.

    Decoupled decay takes off lr x weight_decay (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2). With SGD
    the decay is a part of the gradient, so momentum multiplies what it adds up to by 1/(1 - momentum). Where a gradient
    with decay in it is normalised, as in Adam, no such share exists.

    Example:
        >>> from torch import nn, optim
        >>> shrinkage(optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.5, weight_decay=0.5))
        0.1
    """
    name, is_sgd = type(optimizer).__name__, isinstance(optimizer, SGD)
    largest = 0.0
    for group in optimizer.param_groups:
        taken = float(group.get("lr", 0.0)) * float(group.get("weight_decay", 0.0) or 0.0)
        if is_sgd:
            taken /= max(1.0 - float(group["momentum"]), 1e-6)
        elif not group.get("decoupled_weight_decay") and not any(part in name for part in DECOUPLED):
            continue
        largest = max(largest, taken)
    return largest
