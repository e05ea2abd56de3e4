"""How far the loss has come: one symptom is a sick run's when nothing was learnt, and harmless when it learns."""

from __future__ import annotations

import math
from statistics import median_low

from gradguard.evidence.running import LossWindow
from gradguard.evidence.stats import StepStats


WINDOW = 50  # steps of the rolling statistics of the loss that are read
NUM_RECENT = 10  # losses whose median is the loss now
SPOILT = 3.0  # initial loss over the very first one, from which it is what the first updates made of it
LEARNED = 0.5  # share of the initial loss from which a run has learnt something


def share_left(stats: StepStats) -> float:
    """Return the loss now over the loss at the start; NaN when their ratio says nothing.

    The loss now is the median of the last ten, so that one step tells nothing. The loss at the start is the initial
    one, or the very first where the first updates multiplied it: to come down from there is no learning. Losses around
    zero, as reinforcement learning has them, have no ratio.

    Args:
        stats: of this step, with a loss window of `WINDOW`.
    """
    recent = recent_loss(stats.losses[WINDOW])
    is_spoilt = stats.initial_loss > SPOILT * stats.first_loss > 0.0
    start = stats.first_loss if is_spoilt else stats.initial_loss
    return recent / start if start > 0.0 else math.nan


def recent_loss(losses: LossWindow) -> float:
    """Return the median of the newest losses of a window, NaN while it is empty."""
    if not losses.values:
        return math.nan
    return median_low([losses.values[-1 - i] for i in range(min(NUM_RECENT, len(losses.values)))])


def has_learned(share: float) -> bool:
    """Return whether a share that is left says so; what is not known (NaN) is not learnt.

    Example:
        >>> has_learned(0.2), has_learned(0.9), has_learned(float("nan"))
        (True, False, False)
    """
    return share < LEARNED
