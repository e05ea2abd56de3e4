"""A target on paper: it has the numbers of a step, and neither a model nor an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradguard.evidence.norm_notes import NormNotes
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.records import Finding


class OffPaper(AttributeError):
    """A remedy asked for something that no record holds."""


class PaperTarget(NormNotes):
    """Stands for a `Target`: a remedy that works with norms alone does here what it would do there.

    Args:
        stats: of the step; norms are noted in it.
        table: the parameters.

    Attributes:
        is_rebaselined: see `Target`; likewise the others.
    """

    def __init__(self, stats: StepStats, table: ParameterTable) -> None:
        super().__init__(stats)
        self.table = table
        self.sample_ids: tuple[int | str, ...] = ()
        self.begin()

    def begin(self) -> None:
        """Forget what remedies did at the step before."""
        self.is_skipped = self.is_stopped = self.is_rebaselined = False
        self.is_past = self.was_skipped = self.stats.is_late
        self.stop_finding: Finding | None = None

    def drop_step(self) -> int:
        """Note that the step is not taken; no buffer is put back."""
        self.is_skipped = True
        return 0

    def refuse_if_stopped(self) -> None:
        """Nothing is refused: whether it would be is not known."""

    def scale_all(self, factor: float) -> None:
        """Note that every gradient was multiplied by one factor."""
        self.note_all(factor)

    def multiply_all(self, factor: float) -> None:
        """See `scale_all`."""
        self.note_all(factor)

    def scale(self, factors: Mapping[int, float]) -> None:
        """Note that the gradients of some rows were multiplied, {row: factor}."""
        self.note({row: self.stats.norm(row) * factor for row, factor in factors.items()})

    def __getattr__(self, name: str) -> Any:
        raise OffPaper(f"the record does not hold {name!r}")
