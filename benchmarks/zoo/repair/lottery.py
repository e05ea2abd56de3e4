"""A guard that intervenes when another one did, with remedies drawn by lot: what a policy has to beat.

Any change of a run that fails has a chance to help, so that lots do better than one would think.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from benchmarks.zoo.train import Act
from gradguard.contracts import REMEDIES, Diagnosis
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.policy.forms import resolve
from gradguard.policy.schema import Policy, Rule
from gradguard.records import Finding


# Remedies in the loop, with options that a person might choose; those that the registry does not have are left out.
LOTS: dict[str, tuple[dict[str, Any], ...]] = {
    "rollback": ({},),
    "restart": ({},),
    "skip_step": ({},),
    "clip_norm": ({"max_norm": 1.0}, {"max_norm": {"median_times": 1}}, {"max_norm": {"median_times": 3}}),
    "keep_clipping": ({"max_norm": 1.0, "steps": 200}, {"max_norm": {"median_times": 3}, "steps": 200}),
    "clip_value": ({"max_value": 0.1},),
    "rescale": ({"factor": 0.1}, {"factor": 10.0}),
    "zero_nonfinite": ({},),
    "scale_lr": (
        {"factor": 0.1},
        {"factor": 0.3},
        {"factor": 3.0},
        {"factor": 0.1, "recover_steps": 200},
        {"factor": 0.5, "recover_steps": 200},
    ),
}
UNCHANGING = ("notify", "rebaseline", "stop")  # nothing of a run that goes on


class Appointed(Diagnosis[None]):
    """Finds something at the steps that it was told, whatever happens there.

    Args:
        steps: 0-based.
    """

    name = "appointed"

    steps: tuple[int, ...]

    def init(self, table: ParameterTable, rows: Sequence[int]) -> None:
        """See `Diagnosis.init`."""

    def update(self, state: None, stats: StepStats) -> tuple[None, Finding | None]:
        """See `Diagnosis.update`."""
        is_due = stats.step in self.steps
        return None, Finding(diagnosis=self.name, step=stats.step, message="It is time.") if is_due else None


def lottery(acts: Iterable[Act], num_turns: int, seed: str) -> list[Policy]:
    """Return a policy a turn that intervenes as often as was done, at the same steps, each time with a remedy drawn.

    Args:
        acts: what another guard did.
        num_turns: of the training.
        seed: of the draw.
    """
    random = Random(seed)
    lots = [(name, options) for name in REMEDIES.names() for options in LOTS.get(name, ())]
    names = sorted({name for name, _ in lots})
    drawn: list[dict[tuple[str, int], set[int]]] = [defaultdict(set) for _ in range(num_turns)]
    for act in acts:
        if act.remedy not in UNCHANGING:
            name = random.choice(names)
            place = random.choice([place for place, lot in enumerate(lots) if lot[0] == name])
            drawn[act.turn][name, place].add(act.step)
    return [
        Policy(
            rules=tuple(
                Rule(
                    name=f"draw-{place}",
                    when=Appointed(steps=tuple(sorted(steps))),
                    do=(resolve(REMEDIES, {name: lots[place][1]}),),
                )
                for (name, place), steps in sorted(own.items())
            )
        )
        for own in drawn
    ]
