"""A factor: a number, or whatever brings what was found to a value."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from gradguard.records import Finding
from gradguard.registry import Options


class AimAt(Options):
    """A factor that brings the statistic of a finding to a value, if it is proportional to what is scaled.

    The update ratio is proportional to the learning rate, for SGD and Adam alike. A finding that is a consequence of
    something else is no measure to aim by: where the gradient vanishes, a larger rate is no cure.

    Args:
        aim_at: value that the statistic is to have, > 0, in its own unit.
        at_least: the factor is never below, > 0.
        at_most: nor above, > 0.
    """

    aim_at: float = Field(gt=0)
    at_least: float = Field(default=1e-2, gt=0)
    at_most: float = Field(default=1e4, gt=0)


Factor = Annotated[float, Field(gt=0)] | AimAt


def resolve_factor(factor: float | AimAt, finding: Finding | None) -> float | None:
    """Return a factor as a number; None when the finding has no positive value, or one that something else made.

    Example:
        >>> found = Finding(diagnosis="update_ratio", step=100, value=3e-7)
        >>> resolve_factor(AimAt(aim_at=3e-3, at_most=100.0), found), resolve_factor(0.5, None)
        (100.0, 0.5)
    """
    if not isinstance(factor, AimAt):
        return factor
    value = math.nan if finding is None or finding.value is None else float(finding.value)
    if finding is None or finding.follows is not None or not 0.0 < value < math.inf:
        return None
    return min(max(factor.aim_at / value, factor.at_least), factor.at_most)
