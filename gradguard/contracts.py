"""The whole extension surface: what a diagnosis, a remedy and a sink are, and the registries that find them.

A new one is one new file in `diagnoses/`, `remedies/` or `sinks/` holding one class under `@DIAGNOSES.register` (or
`@REMEDIES.register`, `@SINKS.register`); no other file is edited. Third parties do the same in a module of their own
and name it in the entry-point group `gradguard.plugins`, or call `gradguard.register_diagnosis` before the policy is
loaded.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from gradguard.errors import GradguardError
from gradguard.evidence.stats import ParameterTable
from gradguard.evidence.trigger import Calm, Trigger
from gradguard.records import AnyRecord, Change, Finding
from gradguard.registry import Component, Registry


if TYPE_CHECKING:
    from torch import Tensor

    from gradguard.evidence.stats import StepStats
    from gradguard.flow.target import Target
    from gradguard.limits.norm_sets import Rows
    from gradguard.limits.tracked import TrackedLimit

S = TypeVar("S")
PASSES = 50  # steps after which what was found at one step is over: so long an intervention takes to be judged
STAYS = 1000  # likewise of a state that stays as it is until somebody changes it


class Unavailable(GradguardError):
    """Raised by a remedy that cannot act now (no snapshot, ...); recorded as a non-action with its message."""


class Diagnosis(Component, Generic[S]):
    """Names one failure mode from the measurements: `init() -> state`, `update(state, stats) -> (state, finding)`.

    `update` is pure but for its own state, which it may update in place: no torch, no clock, no I/O, no randomness. It
    reads `stats` and keeps no reference to its arrays, which the next step overwrites. State is a dataclass of numbers,
    numpy arrays, lists and dicts of these, so that it can be saved, copied and compared.

    Attributes:
        sees_scaler_skips: also asked on steps that GradScaler is about to skip; others then rest.
        is_foreseeable: `triggers` tells beforehand on what it will fire, so that the device can act without the host.
        follows: names of the diagnoses that it may be a consequence of.
        lasts: steps after it was found last for which it may still be the cause of something else; few for what is over
            with its step, many for a state that goes on and is told once.
        precedence: of several that fire in one step the lowest is told first: what is broken before what follows.
        reads: what is to be sampled for it beside the gradients: "activations", "updates".
        locates: it asks where NaN came into a step that is not finite (`StepStats.origin`).
    """

    sees_scaler_skips: ClassVar[bool] = False
    is_foreseeable: ClassVar[bool] = False
    follows: ClassVar[tuple[str, ...]] = ()
    lasts: ClassVar[int] = PASSES
    precedence: ClassVar[int] = 50
    reads: ClassVar[frozenset[str]] = frozenset()
    locates: ClassVar[bool] = False

    def sees_microbatches(self) -> bool:
        """Return whether it tells of micro-batches that were taken back (`StepStats.dropped_microbatches`)."""
        return False

    def rests_when_quiet(self) -> bool:
        """Return whether `update` neither finds nor changes anything on a `StepStats.is_quiet` step after another."""
        return False

    def windows(self) -> Sequence[int]:
        """Return the sizes (steps) of the rolling windows of gradient norms that `update` reads."""
        return ()

    def loss_windows(self) -> Sequence[int]:
        """Return the sizes (steps) of the rolling windows of the loss that `update` reads."""
        return ()

    @abstractmethod
    def init(self, table: ParameterTable, rows: Sequence[int]) -> S:
        """Return the state before the first step.

        Args:
            table: the parameter tensors.
            rows: the parameters that the rule looks at.
        """

    @abstractmethod
    def update(self, state: S, stats: StepStats) -> tuple[S, Finding | None]:
        """Return the next state, and a finding when something is wrong at this step."""

    def triggers(self, state: S, stats: StepStats) -> Sequence[Trigger]:
        """Return on what it will fire at the step to come, with severity "warn" at least; the first counts.

        Args:
            state: after the last step.
            stats: `step`, `lr`, the rolling statistics and what was sampled are those of the step to come.
        """
        return ()

    def calm(self, state: S, stats: StepStats) -> Calm | None:
        """Return bounds on the steps to come within which `update` finds nothing; None when there are none.

        Only `StepStats.is_quiet` steps with a loss as before are meant, at which every gradient is there and not zero.
        They are taken in at once, and handed to `pass_by` in order a few steps later.

        Args:
            state: after the last step.
            stats: of the last step; its rolling statistics have taken it in.
        """
        return Calm() if self.rests_when_quiet() else None

    def pass_by(self, state: S, stats: StepStats) -> S:
        """Return the next state, as `update` would at a step that `calm` had covered."""
        return self.update(state, stats)[0]

    def dump_state(self, state: S) -> dict[str, Any]:
        """Return a copy of what changes in a state; what is fixed (the parameter table, sets of rows) is left out."""
        if not dataclasses.is_dataclass(state):
            return {"state": copy.deepcopy(state)}
        return {
            field.name: copy.deepcopy(value)
            for field in dataclasses.fields(state)
            if not isinstance(value := getattr(state, field.name), (ParameterTable, frozenset))
        }

    def load_state(self, state: S, dumped: dict[str, Any]) -> S:
        """Put a dumped state into a fresh one from `init` and return it."""
        if not dataclasses.is_dataclass(state):
            return cast("S", copy.deepcopy(dumped["state"]))
        for name, value in dumped.items():
            setattr(state, name, copy.deepcopy(value))
        return state


Kind = Literal["verdict", "gradient", "optimizer", "notice", "surgery"]
Timing = Literal["late", "skip", "now"]


class Remedy(Component):
    """One intervention. The only code that changes anything of the user's.

    Attributes:
        kind: "verdict" (decides over the whole step: stop, restart, rollback, skip), "gradient" (changes gradients
            before the step), "optimizer" (learning rate and the like), "notice" (changes nothing), "surgery" (changes
            weights or modules, after any verdict, and drops the step).
        rank: among verdicts the highest wins; among other remedies of a kind the lowest is applied first.
        needs: what the guard must keep for it: "buffers" (copies of the model's buffers), "snapshots", "start" (the
            first of these), "captures" (what makes a step repeatable), "inputs" (what the model was given last),
            "microbatches" (what was accumulated before each), "dead_units" (which ones they are, when activations are
            probed).
        timing: "late": as good one step later; "skip": dropping the step, which the device can do before the host
            knows; "now": it must see the gradients, but for what `device_limit` says.
        is_routine: allowed under `when: always`; such changes are counted in the step statistics.
    """

    kind: ClassVar[Kind] = "gradient"
    rank: ClassVar[int] = 0
    needs: ClassVar[frozenset[str]] = frozenset()
    timing: ClassVar[Timing] = "now"
    is_routine: ClassVar[bool] = False

    def windows(self) -> Sequence[int]:
        """Return the sizes (steps) of the rolling windows of gradient norms that `apply` reads."""
        return ()

    def tracked(self, table: ParameterTable, rows: Rows) -> Sequence[tuple[TrackedLimit, Sequence[Rows]]]:
        """Return the limits with a memory that `apply` reads, each with the sets of parameters that it limits.

        Args:
            table: the parameter tensors.
            rows: the rule's parameters, None for all.
        """
        return ()

    def obstacle(self, params: Sequence[Tensor]) -> str:
        """Return why it cannot act on the rule's parameters, known at attach; "" when it can."""
        return ""

    @abstractmethod
    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """Carry the intervention out and say what changed.

        Args:
            target: the handles that a remedy may touch.
            finding: what fired the rule; None under `when: always`.
            rows: parameters to act on; None for all.

        Returns:
            The change with before and after, or None when nothing had to be changed (a norm already below its limit).

        Raises:
            Unavailable: it cannot act now; nothing was changed.
        """

    def device_limit(self, stats: StepStats, has_baseline: bool) -> float | None:
        """Return the limit on the global norm that is all it comes to, None when it is something else."""
        return None

    @classmethod
    def restore_effect(cls, state: dict[str, Any]) -> Effect:
        """Return the effect that a saved `Effect.state_dict` describes, for remedies that leave one in force."""
        raise GradguardError(f"a saved state says that {cls.name} left an effect in force; it leaves none")


class Effect(Protocol):
    """Something that a remedy leaves in force for the steps that follow, such as a learning-rate factor."""

    remedy: str

    def before_step(self, target: Target, step: int) -> None:
        """Put the effect in force just before torch's step; called again whenever effects changed since."""

    def on_gradients(self, target: Target, step: int) -> None:
        """Change the gradients that torch's step is about to use; called once a step, when they are measured."""

    def take_off(self, target: Target) -> None:
        """Undo what `before_step` did to the optimizer; called just after torch's step, and when there is none."""

    def goes_on(self, step: int) -> bool:
        """Return whether the effect is still in force at a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on exactly after a resume."""


class Sink(Component):
    """Tells records to someone or something, beside the journal that keeps them."""

    @abstractmethod
    def emit(self, record: AnyRecord) -> None:
        """Pass one record on; it must not raise for what it cannot show."""

    def close(self) -> None:
        """Let go of whatever `emit` opened."""


DIAGNOSES: Registry[type[Diagnosis[Any]]] = Registry("diagnosis", "gradguard.diagnoses")
REMEDIES: Registry[type[Remedy]] = Registry("remedy", "gradguard.remedies")
SINKS: Registry[type[Sink]] = Registry("sink", "gradguard.sinks")
