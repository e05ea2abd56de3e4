"""What the guard promises, and whether the measurements bear it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.overhead.cell import Cell
from benchmarks.overhead.samples import Timing


@dataclass(frozen=True)
class Target:
    """An upper limit on one number.

    Args:
        workload: whose cells it is about.
        contender: whose number.
        measure: "ratio" of overheads, "median_ratio", or "step_ratio" of whole steps, see `Timing`.
        limit: the most it may be.
        optimizer: whose cells only; "" for all.
        against: the contender that it is held against, for the text.
    """

    workload: str
    contender: str
    measure: str
    limit: float
    optimizer: str = ""
    against: str = "clip"

    def value(self, timing: Timing) -> float | None:
        """Return the number that the limit is on; None when it could not be measured."""
        values = {
            "ratio": timing.ratio,
            "median_ratio": timing.median_ratio,
            "step_ratio": timing.step_ratio,
        }
        return values[self.measure]


@dataclass(frozen=True)
class Verdict:
    """A target held against one cell.

    Args:
        workload: of the cell.
        optimizer: of the cell.
        what: the number, in words.
        value: measured; None when the anchor's overhead was lost in the noise.
        limit: the most it may be.
    """

    workload: str
    optimizer: str
    what: str
    value: float | None
    limit: float

    @property
    def is_met(self) -> bool:
        """Whether the number is there and within the limit."""
        return self.value is not None and self.value <= self.limit


TARGETS = (
    *(
        Target(name, "default", measure, 0.7)
        for name in ("mlp-4", "mlp-40", "mlp-200", "mlp-2000")
        for measure in ("median_ratio", "ratio")
    ),
    Target("gpt2-124m", "default", "median_ratio", 0.6),
    Target("gpt2-124m", "default", "ratio", 0.6),
    Target("gpt2-124m", "always-due", "step_ratio", 0.9, "adamw-fused", against="clip-due"),
    Target("gpt2-124m", "always", "step_ratio", 0.85, "adamw-fused"),
)
WORDS = {
    "ratio": "overhead of {0} / overhead of {1}, with what steps put off",
    "median_ratio": "overhead of {0} / overhead of {1}, ratio of medians",
    "step_ratio": "step under {0} / step with {1}",
}


def judge(cells: Sequence[Cell]) -> list[Verdict]:
    """Return a verdict for every target and every cell that it bears on."""
    return [
        Verdict(
            cell.workload,
            cell.optimizer,
            WORDS[target.measure].format(target.contender, target.against),
            target.value(cell.timings[target.contender]),
            target.limit,
        )
        for target in TARGETS
        for cell in cells
        if cell.workload == target.workload
        and target.optimizer in ("", cell.optimizer)
        and target.contender in cell.timings
    ]
