"""Do the model's last function and the loss fit together?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding


WORDS = {"relu": "ReLU"}
SCORES = ("cross_entropy", "bce_with_logits")  # losses that want raw scores, of any sign
OWN = {"cross_entropy": "a softmax", "bce_with_logits": "a sigmoid"}
LOSSES = {"cross_entropy": "cross-entropy", "bce_with_logits": "binary cross-entropy with logits"}
MIN_ENTRIES = 20


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a loss that cannot see the output, or that wants another kind of it."""
    loss, output = facts.loss, facts.output
    if output is None or facts.failure is not None:
        return
    if not loss.reacts_to_output:
        yield PreflightFinding(
            severity="critical",
            message=f"The loss is {loss.value:.4g} whatever the model gives: its gradient is zero everywhere.",
            cure=(
                "a softmax over a single unit is always 1 (use a sigmoid, or BCEWithLogitsLoss); rounding, argmax and "
                "comparisons have no gradient"
            ),
        )
    elif loss.kind in SCORES:
        yield from _scores(facts)
    elif loss.kind == "nll" and not output.is_log_distribution:
        yield PreflightFinding(
            severity="critical",
            message="NLLLoss wants logarithms of probabilities, and the model's outputs are none.",
            cure="use CrossEntropyLoss on the raw outputs, or end the model with a log_softmax",
        )
    elif loss.kind == "bce" and output.function == "softmax" and output.tensor.shape[-1:] == (1,):
        yield PreflightFinding(
            severity="critical", message="A softmax over a single unit is always 1.", cure="use a sigmoid"
        )


def _scores(facts: Facts) -> Iterator[PreflightFinding]:
    loss, output = facts.loss, facts.output
    assert output is not None
    function = output.function
    if not function and output.is_distribution and loss.kind == "cross_entropy":
        function = "softmax"
    wants = f"{LOSSES[loss.kind]} wants raw scores (logits) and applies {OWN[loss.kind]} itself"
    if function in ("softmax", "sigmoid", "tanh") or (function == "log_softmax" and loss.kind != "cross_entropy"):
        yield PreflightFinding(
            severity="critical" if function == "softmax" else "warn",
            message=f"The model ends with a {function}, but {wants}: gradients become small.",
            cure=f"remove the last {function}; apply it when predicting",
            evidence={"smallest": output.tensor.smallest, "largest": output.tensor.largest},
        )
    elif function == "relu":
        yield PreflightFinding(
            severity="critical",
            message=(
                f"The model ends with a ReLU: {output.tensor.zero_share:.0%} of its outputs are 0 and give no "
                f"gradient, but {wants}."
            ),
            cure="remove the last ReLU",
            evidence={"zero_share": output.tensor.zero_share},
        )
