"""Are the targets what the loss wants: labels among the classes, numbers of a scale that can be reached?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding
from gradguard.evidence.input_scale import MAX_STD


REGRESSION = ("mse", "l1")
ENOUGH = 16  # samples from which on a single label is odd


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield what is wrong with the targets."""
    targets, output = facts.targets, facts.output
    if facts.bad_labels:
        wanted = facts.num_classes or (output.classes if output is not None else None)
        yield PreflightFinding(
            severity="critical",
            message=f"Labels {', '.join(map(str, facts.bad_labels))} are none of the classes 0 to {(wanted or 1) - 1}.",
            cure="count the classes from 0, and give the output layer one unit a class",
        )
    if facts.num_classes is not None and output is not None and output.classes not in (None, facts.num_classes):
        yield PreflightFinding(
            severity="critical",
            message=f"The output layer has {output.classes} units, but there are {facts.num_classes} classes.",
            cure=f"give it {facts.num_classes} units",
        )
    if targets is None:
        return
    if targets.nonfinite:
        yield PreflightFinding(
            severity="critical",
            message=f"{targets.nonfinite} targets are NaN or infinite: the loss will be too.",
            cure="drop these rows before training",
        )
    elif facts.loss.kind in REGRESSION:
        yield from _scale(facts)
    elif facts.num_labels == 1 and targets.shape and targets.shape[0] >= ENOUGH:
        yield PreflightFinding(
            severity="info",
            message=f"All {targets.shape[0]} labels of the batch are {targets.smallest:g}.",
            cure="if the data are sorted by class, shuffle them",
        )


def _scale(facts: Facts) -> Iterator[PreflightFinding]:
    targets, output = facts.targets, facts.output
    if targets is None:
        return
    if not targets.std <= MAX_STD:
        yield PreflightFinding(
            severity="warn",
            message=(
                f"The targets are large: from {targets.smallest:.3g} to {targets.largest:.3g}, standard deviation "
                f"{targets.std:.3g}. Errors and gradients grow with them, by their square in the loss."
            ),
            cure="standardise the targets, and undo it when predicting",
            evidence={"mean": targets.mean, "std": targets.std},
        )
    limits = {"relu": (0.0, float("inf")), "sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "tanh": (-1.0, 1.0)}
    low, high = limits.get(output.function if output is not None else "", (-float("inf"), float("inf")))
    if targets.smallest < low or targets.largest > high:
        yield PreflightFinding(
            severity="warn",
            message=(
                f"The model ends with a {output.function if output else ''}, which gives {low:g} to {high:g}, but "
                f"targets go from {targets.smallest:.3g} to {targets.largest:.3g}."
            ),
            cure="end the model with the linear layer, or scale the targets into that range",
        )
