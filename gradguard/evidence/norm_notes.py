"""What a step's stats say after gradients were scaled: norms are noted, not measured again. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gradguard.evidence.stats import ABSENT, StepStats


FLOAT32_MAX = float(np.finfo(np.float32).max)


class NormNotes:
    """Keeps the norms in a step's stats as remedies leave them.

    Args:
        stats: this step's measurements, written to.
    """

    def __init__(self, stats: StepStats) -> None:
        self.stats = stats

    def rows(self, rows: Sequence[int] | None) -> list[int]:
        """Return the rows among `rows` (None: all) that have a gradient at this step."""
        norms = self.stats.norms
        return [i for i in (range(len(norms)) if rows is None else rows) if norms[i] != ABSENT]

    def note_all(self, factor: float) -> None:
        """Note that every gradient was multiplied by one factor."""
        stats = self.stats
        for row, norm in list(stats.exact_norms.items()):
            self._set_norm(row, norm * factor)
        others = stats.norms != ABSENT
        others[list(stats.exact_norms)] = False
        stats.norms[others] *= factor
        stats.global_norm *= factor
        stats.levels[0] = min(stats.global_norm, FLOAT32_MAX)

    def note(self, norms: Mapping[int, float]) -> None:
        """Take the norms that a remedy left some rows with, {row: norm}, for those that come after it."""
        for row, norm in norms.items():
            self._set_norm(row, norm)
        self._sum_up()

    def _set_norm(self, row: int, norm: float) -> None:
        self.stats.exact_norms.pop(row, None)
        if FLOAT32_MAX < norm < math.inf:
            self.stats.exact_norms[row] = norm
            norm = FLOAT32_MAX
        self.stats.norms[row] = norm

    def _sum_up(self) -> None:
        present = [self.stats.norm(row) for row in self.rows(None)]
        self.stats.global_norm = math.hypot(*present)
        self.stats.levels[0] = min(self.stats.global_norm, FLOAT32_MAX) if self.stats.finite else self.stats.global_norm
