"""Does each sample's output depend on that sample only?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding


MAX_LEAK = 1e-2  # of the outputs' spread; rounding gives 1e-6, in bfloat16 up to 1e-2


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a batch dimension that got mixed up with another one."""
    if facts.leak is None or not facts.leak > MAX_LEAK:
        return
    yield PreflightFinding(
        severity="warn" if facts.is_leak_certain else "info",
        message=(
            "The output of a sample changes with the other samples of the batch, by "
            f"{facts.leak:.2g} of the spread of the outputs: somewhere the batch dimension is mixed with another."
        ),
        cure=(
            "look for view, reshape, transpose or softmax over the wrong dimension, and for batch_first; fine when "
            "samples are meant to meet (graphs, contrastive losses, time first): skip=['sample_independence']"
        ),
        evidence={"leak": facts.leak},
    )
