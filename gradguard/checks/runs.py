"""Does one forward and backward pass run at all?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding
from gradguard.printable import layer_name


HINTS = (
    ("labels outside", "count the classes from 0, and give the output layer one unit a class"),
    ("asked for row", "the vocabulary of the embedding must be larger than every token id"),
    ("scalar type Long", "class labels for cross-entropy must be int64: targets.long()"),
    ("expected scalar type", "inputs and weights must have the same dtype: inputs.float()"),
    ("must have the same dtype", "inputs and weights must have the same dtype: inputs.float()"),
    ("0D or 1D target", "the labels' shape must be that of the output without its classes: (N,) for (N, C)"),
    ("same device", "move the batch to the model's device: inputs.to(device), targets.to(device)"),
    ("shapes cannot be multiplied", "the layer's in_features must be the last dimension of what it is fed"),
    ("between 0 and 1", "BCELoss wants probabilities: put a sigmoid before it, or better use BCEWithLogitsLoss"),
    ("target size", "outputs and targets must have the same shape: squeeze the one or unsqueeze the other"),
    ("modified by an inplace", "an in-place operation overwrote what backward needs: use the one that is not in place"),
)


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield what was raised."""
    failure = facts.failure
    if failure is not None:
        where = f" in {layer_name(failure.module)}" if failure.module else ""
        doing = {"labels": "loss"}.get(failure.stage, failure.stage)
        yield PreflightFinding(
            severity="critical",
            message=f"The {doing} raises{where}: {failure.error}: {failure.message}",
            cure=next((hint for words, hint in HINTS if words in failure.message), ""),
            layers=(failure.module,) if failure.module else (),
        )
    elif not facts.loss.is_scalar:
        yield PreflightFinding(
            severity="critical",
            message="The loss has more than one entry, so backward() will refuse it.",
            cure="average it over the batch: loss.mean(), or reduction='mean'",
        )
    elif not facts.loss.has_graph:
        yield PreflightFinding(
            severity="critical",
            message="The loss depends on nothing that is trained, so backward() will refuse it.",
            cure="look for .detach(), .item(), argmax, torch.no_grad() or a new tensor between the model and the loss",
        )
