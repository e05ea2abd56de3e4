"""A learning rate that jumped shortly before something was found: then the schedule is to blame, not the data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradguard.printable import short


LEAST_RATIO = 3.0  # below it a schedule may well rise
NUM_BEFORE = 5  # steps in which a jump of the learning rate may be what broke the run


class Jump(NamedTuple):
    """A learning rate that rose from one step to the next.

    Args:
        step: the first one with the new rate.
        before: the rate before.
        after: the new rate.
    """

    step: int
    before: float
    after: float

    def __str__(self) -> str:
        rates = f"from {short(self.before)} to {short(self.after)}"
        return f"at step {self.step:,} the learning rate rose {short(self.after / self.before)} times, {rates}"

    @property
    def advice(self) -> str:
        """What to do about it."""
        return f"Look at the learning-rate schedule: {self}."


def rate_jump(steps: npt.NDArray[np.int64], rates: npt.NDArray[np.float64], step: int) -> Jump | None:
    """Return the largest jump of the learning rate in the few steps up to one, None when it rose threefold at none.

    Args:
        steps: (S,) recorded ones; of a step that is there twice the last counts.
        rates: (S,) learning rate of each.
        step: up to which.

    Example:
        >>> jump = rate_jump(np.arange(4), np.array([0.1, 0.1, 20.0, 20.0]), 3)
        >>> print(jump)
        at step 2 the learning rate rose 200 times, from 0.1 to 20
    """
    places = np.flatnonzero(steps == step)
    if not len(places):
        return None
    end = int(places[-1]) + 1
    start = max(0, end - 1 - NUM_BEFORE)
    near = rates[start:end].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.where(near[:-1] > 0, near[1:] / near[:-1], 0.0)
    if not len(ratios) or not ratios.max() >= LEAST_RATIO:
        return None
    worst = int(np.argmax(ratios))
    return Jump(int(steps[start + worst + 1]), float(near[worst]), float(near[worst + 1]))
