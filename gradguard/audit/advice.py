"""What a person can do about a finding: what fits its cause, what the finding says, or what the diagnosis knows."""

from __future__ import annotations

from gradguard.audit.rate_jump import Jump
from gradguard.contracts import DIAGNOSES
from gradguard.records import Finding


BY_RATE = ("loss_spike", "exploding_gradient", "divergence", "update_spike", "update_ratio", "oscillation", "nonfinite")


def advice(finding: Finding, jump: Jump | None = None) -> str:
    """Return what to do, "" when nothing is known.

    Args:
        finding: what was found.
        jump: of the learning rate just before it, None when there was none.

    Example:
        >>> spike = Finding(diagnosis="loss_spike", step=9, advice="Look at the samples.")
        >>> advice(spike)
        'Look at the samples.'
        >>> advice(spike, Jump(8, 0.1, 30.0))
        'Look at the learning-rate schedule: at step 8 the learning rate rose 300 times, from 0.1 to 30.'
    """
    if jump is not None and finding.diagnosis in BY_RATE:
        return jump.advice
    known = {diagnosis.name: diagnosis.cure for diagnosis in DIAGNOSES}
    return finding.advice or known.get(finding.diagnosis, "")
