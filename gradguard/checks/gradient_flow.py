"""Does the gradient reach every layer?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradguard.checklist.facts import Facts, Parameter
from gradguard.checklist.finding import PreflightFinding, at_most, few
from gradguard.evidence.signal_trend import change_per_layer
from gradguard.printable import layer_name


MIN_SHARE = 1e-2  # of the last hidden layer's gradient that should be left at the first
CURE = (
    "initialise by fan-in (He for ReLU, Xavier for tanh), use ReLU or GELU instead of sigmoid, add normalisation "
    "layers or residual connections"
)


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield layers without a gradient, with a zero one, and a gradient that fades or grows geometrically."""
    if facts.failure is not None or not facts.loss.has_graph or facts.loss.value is None:
        return
    wanting = [p for p in facts.parameters if p.is_trained and not p.is_foreign]
    cut = [p for p in wanting if p.grad_norm is None and p.is_called]
    if cut:
        yield _found(
            "warn",
            f"{few([p.name for p in cut])} are used in the forward pass but the loss does not reach them: no gradient.",
            "look for .detach(), torch.no_grad(), argmax or an output that is not used between them and the loss",
            cut,
        )
    unused = [p for p in wanting if p.grad_norm is None and not p.is_called]
    if unused:
        yield _found(
            "info",
            f"{few([p.name for p in unused])} get no gradient: nothing on the way to the loss uses them.",
            "fine when meant; DDP then needs find_unused_parameters=True",
            unused,
        )
    # A module that a gradient reaches is not cut off, such as a recurrent one of which only the last state is used.
    reached = {p.layer for p in wanting if p.has_later_gradient}
    zero = [p for p in wanting if p.grad_norm == 0 and p.layer not in reached]
    if zero:
        yield _found(
            "critical",
            f"The gradient of {few([p.name for p in zero])} is exactly zero, and stays so after a few steps.",
            "look for dead ReLU units, weights that are all zero, or a loss that does not react to the output",
            zero,
        )
    else:
        yield from _fading(wanting)


def _fading(wanting: list[Parameter]) -> Iterator[PreflightFinding]:
    layers = sorted((p for p in wanting if p.is_weight and p.order and p.norm and p.grad_norm), key=lambda p: p.order)
    # Without the head: beside a small one, every other gradient is small.
    hidden = layers[:-1]
    if len(hidden) < 2:
        return
    relative = [(p.grad_norm or 0.0) / p.norm for p in hidden]
    first, last = hidden[0], hidden[-1]
    share = (first.grad_norm or 0.0) / (last.grad_norm or math.inf)
    factor = change_per_layer(relative)
    if factor is None:
        return
    if factor > 1 and share < MIN_SHARE:
        yield _found(
            "warn",
            f"The gradient fades by a factor of {factor:.3g} a layer: {first.grad_norm:.2g} at "
            f"{layer_name(first.name)}, {last.grad_norm:.2g} at {layer_name(last.name)}. "
            "The first layers will hardly learn.",
            CURE,
            hidden,
        )
    elif factor < 1 and share > 1 / MIN_SHARE:
        yield _found(
            "warn",
            f"The gradient grows by a factor of {1 / factor:.3g} a layer on its way back: {last.grad_norm:.2g} at "
            f"{layer_name(last.name)}, {first.grad_norm:.2g} at {layer_name(first.name)}. It will explode.",
            CURE + "; clip the gradient norm",
            hidden,
        )


def _found(severity: str, message: str, cure: str, parameters: list[Parameter]) -> PreflightFinding:
    return PreflightFinding.model_validate(
        {"severity": severity, "message": message, "cure": cure, "layers": at_most([p.name for p in parameters])}
    )
