"""The full statistics of every gradient on disk: a row a probe, see `chunks`.

    gradients/000000.npy, 000001.npy, ...    structured dtype, no objects: `gradients_dtype(P)`

49 bytes a parameter tensor: with a probe every 50 steps, one byte a step beside the four of its norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.evidence.stats import ABSENT
from gradguard.gradients.magnitude_bins import NUM_BINS, pack_shares
from gradguard.record.chunks import ChunkWriter


NUMBERS = ("mean", "std", "max", "min", "zero_ratio", "norm")
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def gradients_dtype(num_parameters: int) -> np.dtype[np.void]:
    """Return the dtype of a row: step, six numbers (P,) float32, and `histogram` (P, 25), packed by `pack_shares`.

    A `norm` of `ABSENT` (-1) marks a parameter without a gradient; its other numbers are NaN.
    """
    numbers = [(name, "<f4", (num_parameters,)) for name in NUMBERS]
    return np.dtype([("step", "<i8"), *numbers, ("histogram", "u1", (num_parameters, NUM_BINS))])


class GradientsWriter(ChunkWriter):
    """Appends one row a probe, and has it written at once: the next one is many steps away."""

    row_dtype = staticmethod(gradients_dtype)

    def append(self, step: int, columns: Mapping[str, npt.NDArray[Any]], is_absent: npt.NDArray[np.bool_]) -> None:
        """Write the row of one step.

        Args:
            step: optimizer step, above the one before.
            columns: `NUMBERS`, (P,) each, and "histogram", (P, NUM_BINS) shares. What is finite and beyond float32 is
                written as the largest float32.
            is_absent: (P,) which parameters have no gradient.

        Raises:
            OSError: it could not be written. It is kept for the next time unless the buffer is full.
        """
        row = self._buffer[self._filled]
        row["step"] = step
        for name in NUMBERS:
            values = columns[name]
            row[name] = np.where(np.isfinite(values), np.clip(values, -_FLOAT32_MAX, _FLOAT32_MAX), values)
        row["norm"][is_absent] = ABSENT
        row["histogram"] = pack_shares(columns["histogram"])
        self._advance()
        self.flush()
