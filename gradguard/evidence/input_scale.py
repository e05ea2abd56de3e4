"""What scale of inputs and targets a network can be fed with. Pure numbers, no torch.

The limits are those of the survey behind the zoo: |mean|/std up to 10, a standard deviation from 0.05 to 20.
"""

from __future__ import annotations

from typing import Literal


MAX_OFFSET = 10.0  # |mean| / std
MIN_STD, MAX_STD = 0.05, 20.0
MAX_FEATURE_RATIO = 1e3  # largest over smallest standard deviation of the features

ScaleProblem = Literal["nonfinite", "constant", "too_large", "too_small", "off_centre"]


def scale_problem(mean: float, std: float, nonfinite: int = 0) -> ScaleProblem | None:
    """Return what is wrong with the scale of a tensor of inputs, None if nothing is.

    Args:
        mean: of the finite entries.
        std: of the finite entries.
        nonfinite: entries that are NaN or infinite.

    Example:
        >>> scale_problem(0.3, 0.37), scale_problem(4.9, 6.0), scale_problem(1e3, 2.0)
        (None, None, 'off_centre')
        >>> scale_problem(77.0, 95.0), scale_problem(0.0012, 0.0015), scale_problem(0.0, 1.0, nonfinite=3)
        ('too_large', 'too_small', 'nonfinite')
    """
    if nonfinite:
        return "nonfinite"
    if std == 0:
        return "constant"
    if not std <= MAX_STD:
        return "too_large"
    if not abs(mean) <= MAX_OFFSET * std:
        return "off_centre"
    return "too_small" if std < MIN_STD else None


def looks_like_bytes(smallest: float, largest: float, is_whole: bool) -> bool:
    """Return whether values look like pixels from 0 to 255.

    Example:
        >>> looks_like_bytes(0.0, 255.0, is_whole=True), looks_like_bytes(0.0, 1.0, is_whole=True)
        (True, False)
    """
    return is_whole and smallest >= 0 and 100 < largest <= 255
