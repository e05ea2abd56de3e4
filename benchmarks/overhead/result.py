"""What was measured, and how it is written as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_core import to_json

from benchmarks.overhead.cell import Cell
from benchmarks.overhead.endurance import Stretch
from benchmarks.overhead.memory import Peak
from benchmarks.overhead.targets import Verdict


@dataclass(frozen=True)
class Result:
    """Everything that one call of the benchmark measured.

    Args:
        environment: versions and machine.
        cells: in the order in which they were measured.
        peaks: of resident memory, by workload and contender.
        endurance: stretches of a long run, empty when none was asked for.
        verdicts: on the targets that the cells bear on.
    """

    environment: dict[str, str]
    cells: tuple[Cell, ...]
    peaks: tuple[Peak, ...]
    endurance: tuple[Stretch, ...]
    verdicts: tuple[Verdict, ...]


def dump(result: Result) -> bytes:
    """Return the result as JSON."""
    return to_json(result, inf_nan_mode="strings", indent=1)
