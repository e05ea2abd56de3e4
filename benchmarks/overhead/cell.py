"""What was measured of one workload under one optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.overhead.reads import Read
from benchmarks.overhead.samples import Timing


@dataclass(frozen=True)
class Cell:
    """A workload under an optimizer.

    Args:
        workload: its name.
        optimizer: its name.
        num_tensors: parameter tensors.
        num_bytes: of all gradients.
        rounds: that were measured.
        timings: by contender.
        skipped: contenders that did not take part, and why.
        findings: of guards that found something; a healthy run has none.
        refusals: of guards that took no snapshot, and why.
        held: bytes that a contender holds once its windows are full, beside the model, the optimizer and the gradients.
        read: one read of the gradients.
    """

    workload: str
    optimizer: str
    num_tensors: int
    num_bytes: int
    rounds: int
    timings: dict[str, Timing]
    skipped: dict[str, str]
    findings: dict[str, int]
    refusals: dict[str, str]
    held: dict[str, int]
    read: Read

    @property
    def iteration(self) -> float:
        """Median of a whole bare iteration, microseconds."""
        return self.timings["bare"].backward + self.timings["bare"].step
