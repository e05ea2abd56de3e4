"""How far the loss has come: the same symptom is a sick run's when nothing was learnt, and a trait of one that learns."""

from __future__ import annotations

import math
from statistics import median_low

from gradguard.running import LossWindow
from gradguard.stats import StepStats


WINDOW = 50  # steps of the rolling statistics of the loss that are read
NUM_RECENT = 10  # losses whose median is the loss now
LEARNED = 0.5  # share of the initial loss from which a run has learnt something
CHANCE_MARGIN = 1.15  # initial loss over ln C from which the start was worse than guessing


def share_left(stats: StepStats, num_outputs: int = 0) -> float:
    """Return the loss now over the loss at the start; NaN when their ratio says nothing.

    The loss now is the median of the last ten, so that one step tells nothing. Where the outputs may be classes and the
    run began far above the loss of guessing among them (ln C), that is the start. Losses around zero, as reinforcement
    learning has them, have no ratio.

    Args:
        stats: of this step, with a loss window of `WINDOW`.
        num_outputs: C, outputs per sample of the model; 0 when it is not known.
    """
    recent = recent_loss(stats.losses[WINDOW])
    start = stats.initial_loss
    if not (start > 0.0 and recent == recent):
        return math.nan
    chance = math.log(num_outputs) if num_outputs > 2 else math.inf
    return recent / (chance if start > CHANCE_MARGIN * chance and recent < start else start)


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
