"""What the three runs show, in numbers and one sentence each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradguard.demo.runs import Run


LOST_FROM = 0.1  # a run this much above the clean one is called lost


@dataclass(frozen=True)
class Verdict:
    """How a run ended, against the clean one.

    Args:
        excess: (loss - clean loss) / clean loss on held-out text; NaN when the loss is not finite.
        lost_at: first step from which the loss was never finite again; None when it is finite at the end.
        is_lost: not finite, or more than `LOST_FROM` above the clean run.
    """

    excess: float
    lost_at: int | None
    is_lost: bool


def judge(run: Run, clean: Run) -> Verdict:
    """Return how a run ended, against the clean one.

    Example:
        >>> clean = Run(losses=(3.0, 2.0), held_out=2.0)
        >>> judge(Run(losses=(3.0, math.nan), held_out=math.nan), clean)
        Verdict(excess=nan, lost_at=1, is_lost=True)
        >>> judge(Run(losses=(3.0, 2.1), held_out=2.05), clean).is_lost
        False
    """
    excess = (run.held_out - clean.held_out) / clean.held_out
    # Written so that NaN counts as lost.
    return Verdict(excess, lost_at(run.losses), not excess < LOST_FROM)


def lost_at(losses: Sequence[float]) -> int | None:
    """Return the first step from which no loss is finite any more, None when the last one is finite."""
    step = len(losses)
    while step and not math.isfinite(losses[step - 1]):
        step -= 1
    return step if step < len(losses) else None


def headline(clean: Run, unguarded: Run, guarded: Run) -> str:
    """Return the outcome of the demo in two sentences."""
    without, within = judge(unguarded, clean), judge(guarded, clean)
    if without.lost_at is not None:
        first = f"Without a guard the run was lost at step {without.lost_at}: its loss is NaN."
    elif without.is_lost:
        first = f"Without a guard the run ended {without.excess:.0%} above the clean one."
    else:
        first = f"Without a guard the run survived these faults, {without.excess:+.1%} from the clean one."
    if guarded.stopped:
        return f"{first} The guard stopped its run at step {len(guarded.losses)}: {guarded.stopped}"
    if within.is_lost:
        return f"{first} With the guard it was lost as well; gradguard audit shows why."
    distance = f"{abs(within.excess):.1%} {'above' if within.excess > 0 else 'below'}"
    return f"{first} With the guard the same faults left it {distance} the clean run's loss."
