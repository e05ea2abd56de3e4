"""The histogram of a gradient: 25 bins over sign and order of magnitude, from the largest entry down.

Gradients have both signs, heavy tails and a scale that nobody knows beforehand, so the edges are a factor of four
apart: 12 bins of a sign reach from the largest magnitude 7 decades down, and one bin in the middle holds zeros and all
that is smaller. The edges lie on one grid for all tensors and steps, 2^(2b - 127) with b = 1, 2, ..., 128, so that
histograms can be added; where the 12 begin follows from the largest and the smallest entry. On this grid, b is seven
bits of a float32's exponent: an exact histogram costs a count of bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


NUM_SIDE = 12  # bins of one sign
NUM_BINS = 2 * NUM_SIDE + 1
_STEPS_PER_OCTAVE = 8
_EMPTY, _FULL = 0, 255


def bin_edges(largest: npt.ArrayLike, smallest: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the edges of the bins, ascending.

    A bin of the positive side holds its lower edge and not its upper one, one of the negative side the other way round;
    the middle bin holds neither of its edges.

    Args:
        largest: (...,) largest entry.
        smallest: (...,) smallest entry.

    Returns:
        (..., NUM_BINS + 1) float64; NaN where an extreme is not finite. Bins below 2^-125 have no width.

    Example:
        >>> bin_edges(0.3, -1.0)[[0, 1, 2, -1]]
        array([-2.   , -0.5  , -0.125,  2.   ])
    """
    peak = np.maximum(np.abs(np.asarray(largest, dtype=np.float64)), np.abs(np.asarray(smallest, dtype=np.float64)))
    is_finite = np.isfinite(peak)
    _, exponent = np.frexp(np.where(is_finite, np.minimum(peak, np.finfo(np.float32).max), 0.0))
    top = np.where(peak > 0, np.maximum(exponent + 126, 0) >> 1, 0)  # b of the largest magnitude
    side = np.ldexp(1.0, 2 * np.maximum(top[..., None] + np.arange(1 - NUM_SIDE, 2), 1) - 127)
    edges = np.concatenate([-side[..., ::-1], side], axis=-1)
    return np.where(is_finite[..., None], edges, np.nan)


def pack_shares(shares: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Return shares in [0, 1] as a byte each: 0 is empty, 1 to 255 are 2^-31.75 to 1, an eighth of an octave apart.

    What is not empty never looks empty. NaN becomes 0.

    Example:
        >>> unpack_shares(pack_shares(np.array([0.0, 0.25, 1e-12, 1.0]))).round(10)
        array([0.0e+00, 2.5e-01, 3.0e-10, 1.0e+00], dtype=float32)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.round(_FULL + _STEPS_PER_OCTAVE * np.log2(shares))
    return np.where(shares > 0, np.clip(level, 1, _FULL), _EMPTY).astype(np.uint8)


def unpack_shares(levels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the shares that bytes stand for, within 4.5 % of what was packed (2^(1/16))."""
    shares = np.exp2((levels.astype(np.float32) - _FULL) / _STEPS_PER_OCTAVE)
    return np.where(levels == _EMPTY, np.float32(0), shares)
