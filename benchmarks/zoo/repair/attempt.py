"""What every arm made of one set-up at one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter
from pydantic_core import to_json

from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.repair.arms import LOTTERY, arms, tend
from benchmarks.zoo.repair.lottery import UNCHANGING
from benchmarks.zoo.result import RECOVERED, REPAIRED, is_near, reference_score
from benchmarks.zoo.setup import Group, Repair, Setup
from benchmarks.zoo.train import Trained


@dataclass(frozen=True)
class Attempt:
    """One run of one arm.

    Args:
        id: of the set-up.
        group: of the set-up.
        repair: of a failing one, where its cure lies.
        seed: of the run.
        arm: who tended it.
        steps: of the run.
        score: at the end: the accuracy, or the share of the variance that is explained; minus infinity when broken.
        unguarded: score of the run that nobody tended.
        reference: of a failing set-up, score of the run as a person would have fixed it; of a transient one, of the
            clean run; None where there is none.
        is_identical: every bit is that of the run that nobody tended.
        interventions: of a guard, how often each remedy was carried out.
        wasted: steps that were skipped, or taken and then rolled back.
        stopped: why a guard ended the run, or "".
    """

    id: str
    group: Group
    repair: Repair | None
    seed: int
    arm: str
    steps: int
    score: float
    unguarded: float
    reference: float | None
    is_identical: bool
    interventions: Counter[str]
    wasted: int
    stopped: str

    @property
    def is_repaired(self) -> bool:
        """Whether the score is at least 95 % of the reference's."""
        return self._is_near(REPAIRED)

    @property
    def is_recovered(self) -> bool:
        """Whether the score is at least 98 % of the reference's."""
        return self._is_near(RECOVERED)

    @property
    def abstained(self) -> bool:
        """Whether nothing was changed, or the run was ended with a word of advice instead."""
        changed = sum(count for name, count in self.interventions.items() if name not in UNCHANGING)
        return bool(self.stopped) or (self.is_identical and changed == 0)

    @property
    def harm(self) -> float:
        """Score that was lost to the run that nobody tended; 0 when both are broken."""
        return 0.0 if self.score == self.unguarded else self.unguarded - self.score

    def _is_near(self, tolerance: float) -> bool:
        return self.reference is not None and is_near(self.score, self.reference, tolerance)


def attempt(setup: Setup, seed: int, policy: str = "default") -> list[Attempt]:
    """Train a set-up with every arm, the guard with `policy` before the lots that follow it."""
    num_turns = len(setup.make(seed).turns)
    names = arms(policy)
    trained: dict[str, Trained] = {}
    for arm in sorted(names, key=lambda name: name == LOTTERY):
        acts = trained[policy].acts if arm == LOTTERY else ()
        trained[arm] = tend(setup, seed, arm, acts, num_turns)
    reference, plain = reference_score(setup, seed), trained["nothing"]
    return [
        Attempt(
            id=setup.id,
            group=setup.group,
            repair=setup.repair,
            seed=seed,
            arm=arm,
            steps=setup.steps,
            score=trained[arm].score,
            unguarded=plain.score,
            reference=reference,
            is_identical=trained[arm].digest == plain.digest,
            interventions=trained[arm].interventions,
            wasted=trained[arm].wasted,
            stopped=trained[arm].stopped,
        )
        for arm in names
    ]


def attempt_by_id(id: str, seed: int, policy: str) -> list[Attempt]:
    """Do so by the set-up's id."""
    return attempt(ZOO[id], seed, policy)


def dump(attempts: Sequence[Attempt]) -> bytes:
    """Return the attempts as JSON; numbers that are not finite are the words "NaN", "Infinity" and "-Infinity"."""
    return to_json(attempts, inf_nan_mode="strings", indent=1)


def load(text: bytes) -> list[Attempt]:
    """Return the attempts that were dumped."""
    return TypeAdapter(list[Attempt]).validate_json(text)
