"""Is anything NaN or infinite before the first step, and where does it begin?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most, few
from gradguard.printable import layer_name


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield the first place that is not finite; what follows from it is not told again."""
    weights = [parameter.name for parameter in facts.parameters if parameter.nonfinite]
    if weights or facts.nonfinite_buffers:
        names = [*weights, *facts.nonfinite_buffers]
        yield _found(
            f"The model holds NaN or infinity before the first step, in {few(names)}.",
            "load an earlier checkpoint, or look at how these are initialised",
            names,
        )
        return
    if any(tensor.nonfinite for tensor in facts.inputs):
        return  # told by the check of the inputs
    for place in facts.places:
        if place.nonfinite and place.is_fed_finite:
            yield _found(
                f"In {layer_name(place.name)} finite inputs turn into {place.nonfinite} NaN or infinite values.",
                "look for exponentials, divisions and logarithms there, and for weights or inputs that are too large",
                [place.name],
            )
            return
    output, loss = facts.output, facts.loss.value
    if output is not None and output.tensor.nonfinite:
        yield _found(
            f"{output.tensor.nonfinite} of the model's outputs are NaN or infinite, although every layer's are finite.",
            "look at what the model's forward does outside of its layers: exponentials, divisions, logarithms",
        )
    elif loss is not None and not abs(loss) < float("inf"):
        yield _loss(facts, loss)
    elif bad := [parameter.name for parameter in facts.parameters if parameter.grad_nonfinite]:
        yield _found(
            f"The loss is finite but the gradient of {few(bad)} is not.",
            "look for sqrt(0), log(0), norm(0) or 0/0: add a small epsilon inside of them, or clamp before",
            bad,
        )


def _loss(facts: Facts, loss: float) -> PreflightFinding:
    seen = facts.output.tensor if facts.output is not None else None
    limits = f" (from {seen.smallest:.3g} to {seen.largest:.3g})" if seen is not None else ""
    cure = "look for logarithms, divisions and roots in the loss function, or use one of torch's own losses"
    if seen is not None and seen.smallest <= 0:
        cure = (
            "some outputs are negative or zero: a logarithm of them is no number. Use a loss that takes raw scores: "
            "CrossEntropyLoss or BCEWithLogitsLoss"
        )
    return _found(f"The model's outputs are finite{limits} but the loss is {loss}.", cure)


def _found(message: str, cure: str, layers: list[str] | None = None) -> PreflightFinding:
    return PreflightFinding(severity="critical", message=message, cure=cure, layers=at_most(layers or []))
