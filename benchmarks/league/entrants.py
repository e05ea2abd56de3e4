"""Who takes part: the others, and the guard with its presets or with a policy file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor, nn
from torch.optim import Optimizer

import gradguard
from benchmarks.league.rivals import AGC, AdaGC, AutoClip, FixedClip, SigmaSkip, Unguarded, ZClip


class Guarded(Unguarded):
    """A step under the guard.

    Args:
        model: what is trained.
        optimizer: of its parameters.
        policy: a preset or a file.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, policy: str) -> None:
        super().__init__(model, optimizer)
        loaded = gradguard.load_policy(policy).model_copy(update={"sinks": ()})
        self._guard = gradguard.attach(model, optimizer, loaded)
        self.remedies: Counter[str] = Counter()
        self.story: list[str] = []
        self._undone: set[int] = set()

    def step(self, step: int, loss: Tensor) -> None:
        """See `Unguarded.step`."""
        self._guard.observe(loss)
        try:
            self.optimizer.step()
        finally:
            self._count(step)

    def close(self) -> None:
        """See `Unguarded.close`."""
        self._guard.close()

    def _count(self, step: int) -> None:
        last = self._guard.last
        acts = [act for act in last.interventions if act.remedy != "notify"]
        self.remedies.update(act.remedy for act in acts)
        self.story += [f"{step}: {act.rule}[{act.rung}] {act.remedy}: {act.change.summary}" for act in acts]
        self.interventions += bool(acts) or last.clip_coef < 1.0
        if not last.skipped:
            self.taken.add(step)
        for act in acts:
            if act.remedy == "rollback":
                kept_until = int(act.change.after["step"] or 0)
                self._undone = self.taken
                self.taken = {taken for taken in self.taken if taken < kept_until}
        remedies = {act.remedy for act in acts}
        if "rebaseline" in remedies and last.skipped and not remedies & {"skip_step", "rollback"}:
            # What the level of the run had been taken for was none: the last rollback is taken back.
            self.taken = self._undone


@dataclass(frozen=True)
class Entrant:
    """Who takes part.

    Args:
        title: as it stands in a table.
        make: from a model and its optimizer.
        package: that has to be installed for it, or "".
    """

    title: str
    make: Callable[[nn.Module, Optimizer], Unguarded]
    package: str = ""

    @property
    def is_here(self) -> bool:
        """Whether it can take part."""
        return not self.package or find_spec(self.package) is not None


def guarded(title: str, policy: str) -> Entrant:
    """Return the guard with a preset or a policy file."""
    return Entrant(title, lambda model, optimizer: Guarded(model, optimizer, policy))


ENTRANTS = {
    "none": Entrant("none", Unguarded),
    "clip": Entrant("clip 1.0", FixedClip),
    "autoclip": Entrant("AutoClip", AutoClip),
    "zclip": Entrant("ZClip", ZClip, "zclip"),
    "adagc": Entrant("AdaGC", AdaGC),
    "agc": Entrant("AGC", AGC),
    "sigma-skip": Entrant("sigma skip", SigmaSkip),
    "default": guarded("gradguard default", "default"),
    "pretrain": guarded("gradguard pretrain", "pretrain"),
}


def entrant(name: str) -> Entrant:
    """Return who has this name; any other name is that of a policy file."""
    return ENTRANTS[name] if name in ENTRANTS else guarded(name, name)
