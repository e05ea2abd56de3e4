"""What was tried in a run, and what of it helped: counted as it happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradguard.records import Verdict


class Tally:
    """Counts interventions by diagnosis and remedy.

    Attributes:
        tried: {(diagnosis, remedy): times carried out}, in the order of the first.
        verdicts: {(diagnosis, remedy): {verdict: times}}, of those that were judged.
    """

    def __init__(self) -> None:
        self.tried: dict[tuple[str, str], int] = {}
        self.verdicts: dict[tuple[str, str], dict[Verdict, int]] = {}

    def did(self, diagnosis: str, remedy: str) -> None:
        """Count an intervention."""
        self.tried[diagnosis, remedy] = self.tried.get((diagnosis, remedy), 0) + 1

    def judged(self, diagnosis: str, remedy: str, verdict: Verdict) -> None:
        """Count a judgement."""
        counts = self.verdicts.setdefault((diagnosis, remedy), {})
        counts[verdict] = counts.get(verdict, 0) + 1

    def of(self, diagnosis: str) -> list[tuple[str, int, dict[Verdict, int]]]:
        """Return (remedy, times, times by verdict) for all that was tried against a diagnosis."""
        return [
            (remedy, times, self.verdicts.get((name, remedy), {}))
            for (name, remedy), times in self.tried.items()
            if name == diagnosis
        ]

    def state_dict(self) -> list[list[Any]]:
        """Return the counts as plain values."""
        return [[*key, times, dict(self.verdicts.get(key, {}))] for key, times in self.tried.items()]

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        """Put saved counts in place of the present ones."""
        self.tried = {(diagnosis, remedy): times for diagnosis, remedy, times, _ in state}
        self.verdicts = {(diagnosis, remedy): dict(counts) for diagnosis, remedy, _, counts in state if counts}
