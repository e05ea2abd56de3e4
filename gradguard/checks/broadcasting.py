"""Does the loss compare each output with its own target?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield shapes that torch stretches to a table of all pairs, and a loss that does not look at the targets."""
    output, targets, loss = facts.output, facts.targets, facts.loss
    if output is None or targets is None or loss.value is None or not loss.reacts_to_output:
        return
    if not loss.reacts_to_targets:
        yield PreflightFinding(
            severity="info",
            message="The loss does not change with the targets.",
            cure="fine without supervision; otherwise look at what the loss function does with them",
        )
    elif not loss.reacts_to_order and output.tensor.shape != targets.shape:
        yield PreflightFinding(
            severity="critical",
            message=(
                f"The loss stays the same when the targets change places: output {output.tensor.shape} and targets "
                f"{targets.shape} are broadcast, so every output is compared with every target, and the model can only "
                "learn their mean."
            ),
            cure="give both the same shape: output.squeeze(1), or targets.unsqueeze(1)",
        )
