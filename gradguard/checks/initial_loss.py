"""Is the first loss about that of a guess?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding


MAX_RATIO = 2.0  # to ln C; published check: |L0 - ln C| / ln C >= 1 (TheDeepChecker)
MAX_REGRESSION_RATIO = 100.0  # to the best constant's loss: an offset of ten standard deviations


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a first loss far above that of guessing."""
    loss, output = facts.loss, facts.output
    if loss.value is None or not math.isfinite(loss.value) or output is None or loss.reduction != "mean":
        return
    if loss.kind == "cross_entropy" and output.classes is not None and output.classes > 1:
        guess = math.log(output.classes)
        if loss.value > MAX_RATIO * guess:
            yield _found(
                loss.value,
                guess,
                f"guessing among {output.classes} classes gives ln {output.classes}",
                "the first outputs are large and wrong: initialise the last layer smaller, or scale the inputs down",
            )
    elif loss.kind == "mse" and loss.constant_loss and loss.value > MAX_REGRESSION_RATIO * loss.constant_loss:
        yield _found(
            loss.value,
            loss.constant_loss,
            "always predicting the targets' mean gives",
            "standardise the targets, or set the last bias to their mean; look at the scale of inputs and weights",
        )


def _found(value: float, guess: float, guessing: str, cure: str) -> PreflightFinding:
    return PreflightFinding(
        severity="warn",
        message=f"The first loss is {value:.4g}, {value / guess:.3g} times that of a guess: {guessing} {guess:.3g}.",
        cure=cure,
        evidence={"loss": value, "expected": guess},
    )
