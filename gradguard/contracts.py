"""The whole extension surface: what a diagnosis, a remedy and a sink are, and the registries that find them.

A new one is one new file in `diagnoses/`, `remedies/` or `sinks/` holding one class under `@DIAGNOSES.register` (or
`@REMEDIES.register`, `@SINKS.register`); no other file is edited. Third parties do the same in a module of their own
and name it in the entry-point group `gradguard.plugins`, or call `gradguard.register_diagnosis` before the policy is
loaded.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from gradguard.errors import GradguardError, did_you_mean
from gradguard.records import AnyRecord, Change, Finding
from gradguard.stats import ParameterTable
from gradguard.trigger import Trigger


if TYPE_CHECKING:
    from gradguard.stats import StepStats
    from gradguard.target import Target

S = TypeVar("S")
C = TypeVar("C", bound="type[Component]")


class Unavailable(GradguardError):
    """Raised by a remedy that cannot act now (no snapshot, ...); recorded as a non-action with its message."""


class Component(BaseModel):
    """Base of everything that a policy names: a frozen set of options plus the words that `gradguard explain` prints.

    Attributes:
        name: the name in a policy; equal to the file's name.
        what: one or two sentences for a newcomer.
        computed: how it is computed, with the formula.
        cure: what a person should change about the model or data (diagnoses).
        source: paper, system or measurement that the formula and the constants come from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str] = ""
    what: ClassVar[str] = ""
    computed: ClassVar[str] = ""
    cure: ClassVar[str] = ""
    source: ClassVar[str] = ""

    def as_policy(self) -> dict[str, Any]:
        """Return `{name: {option: value}}`, the long form of this component in a policy file."""
        return {self.name: self.model_dump(mode="json")}


class Diagnosis(Component, Generic[S]):
    """Names one failure mode from the measurements: `init() -> state`, `update(state, stats) -> (state, finding)`.

    `update` is pure but for its own state, which it may update in place: no torch, no clock, no I/O, no randomness. It
    reads `stats` and keeps no reference to its arrays, which the next step overwrites. State is a dataclass of numbers,
    numpy arrays, lists and dicts of these, so that it can be saved, copied and compared.

    Attributes:
        sees_scaler_skips: also asked on steps that GradScaler is about to skip; others then rest.
        is_foreseeable: `triggers` tells beforehand on what it will fire, so that the device can act without the host.
        follows: names of the diagnoses that it may be a consequence of.
        precedence: of several that fire in one step the lowest is told first: what is broken before what follows.
    """

    sees_scaler_skips: ClassVar[bool] = False
    is_foreseeable: ClassVar[bool] = False
    follows: ClassVar[tuple[str, ...]] = ()
    precedence: ClassVar[int] = 50

    def rests_when_quiet(self) -> bool:
        """Return whether `update` neither finds nor changes anything on a `StepStats.is_quiet` step after another."""
        return False

    def windows(self) -> Sequence[int]:
        """Return the sizes (steps) of the rolling windows of gradient norms that `update` reads."""
        return ()

    def loss_windows(self) -> Sequence[int]:
        """Return the sizes (steps) of the rolling windows of the loss that `update` reads."""
        return ()

    def init(self, table: ParameterTable, rows: Sequence[int]) -> S:
        """Return the state before the first step.

        Args:
            table: the parameter tensors.
            rows: the parameters that the rule looks at.
        """
        raise NotImplementedError

    def update(self, state: S, stats: StepStats) -> tuple[S, Finding | None]:
        """Return the next state, and a finding when something is wrong at this step."""
        raise NotImplementedError

    def triggers(self, state: S, stats: StepStats) -> Sequence[Trigger]:
        """Return on what it will fire at the step to come, with severity "warn" at least; the first counts.

        Args:
            state: after the last step.
            stats: `step`, `lr`, the rolling statistics and what was sampled are those of the step to come.
        """
        return ()

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


Kind = Literal["verdict", "gradient", "optimizer", "notice"]
Timing = Literal["late", "skip", "now"]


class Remedy(Component):
    """One intervention. The only code that changes anything of the user's.

    Attributes:
        kind: "verdict" (decides over the whole step: stop, restart, rollback, skip), "gradient" (changes gradients
            before the step), "optimizer" (learning rate and the like), "notice" (changes nothing).
        rank: among verdicts the highest wins; among gradient remedies the lowest is applied first.
        needs: what the guard must keep for it: "buffers" (copies of the model's buffers), "snapshots".
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
        raise NotImplementedError

    def device_limit(self, stats: StepStats, has_baseline: bool) -> float | None:
        """Return the limit on the global norm that is all it comes to, None when it is something else."""
        return None

    @classmethod
    def restore_effect(cls, state: dict[str, Any]) -> Effect:
        """Return the effect that a saved `Effect.state_dict` describes, for remedies that leave one in force."""
        raise NotImplementedError(f"{cls.name} leaves no effect in force")


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

    def emit(self, record: AnyRecord) -> None:
        """Pass one record on; it must not raise for what it cannot show."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of whatever `emit` opened."""


class Registry(Generic[C]):
    """Names to component classes, filled by the leaf files themselves.

    Args:
        family: what one is called, "diagnosis".
        package: package whose modules register themselves when imported.
    """

    def __init__(self, family: str, package: str) -> None:
        self.family = family
        self.package = package
        self._classes: dict[str, C] = {}
        self._is_walked = False
        self._are_plugins_loaded = False
        self.broken_plugins: list[str] = []

    def register(self, cls: C) -> C:
        """Class decorator: make `cls` known under `cls.name`.

        Raises:
            GradguardError: the name is empty or taken by another class.
        """
        if not cls.name:
            raise GradguardError(f"{cls.__qualname__} has no name; set the class variable `name`")
        if not cls.__module__.startswith(self.package):
            self._walk()  # so that the name of a shipped one is refused here, not when that one is imported
        known = self._classes.get(cls.name)
        if known is not None and known.__qualname__ + known.__module__ != cls.__qualname__ + cls.__module__:
            raise GradguardError(
                f"{self.family} {cls.name!r} is already registered by {known.__module__}.{known.__qualname__}; "
                f"give {cls.__module__}.{cls.__qualname__} another name"
            )
        self._classes[cls.name] = cls
        return cls

    def get(self, name: str) -> C:
        """Return the class registered as `name`.

        Raises:
            KeyError: unknown name; the message lists near names, the known ones and plugins that failed to import.
        """
        self._walk()
        if name not in self._classes:
            self._load_plugins()
        if name not in self._classes:
            broken = "".join(f"; plugin {text}" for text in self.broken_plugins)
            raise KeyError(f"unknown {self.family} {name!r}{did_you_mean(name, self._classes)}{broken}")
        return self._classes[name]

    def __iter__(self) -> Iterator[C]:
        self._walk()
        return iter([self._classes[name] for name in sorted(self._classes)])

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return [cls.name for cls in self]

    def _walk(self) -> None:
        if self._is_walked:
            return
        self._is_walked = True  # first, since the modules register themselves while they are imported
        try:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        except BaseException:
            self._is_walked = False
            raise

    def _load_plugins(self) -> None:
        if self._are_plugins_loaded:
            return
        self._are_plugins_loaded = True
        for entry in entry_points(group="gradguard.plugins"):
            try:
                entry.load()
            except Exception as error:  # a plugin may fail in any way; it is named where its absence matters
                self.broken_plugins.append(f"{entry.name} ({entry.value}) failed to import: {error!r}")


DIAGNOSES: Registry[type[Diagnosis[Any]]] = Registry("diagnosis", "gradguard.diagnoses")
REMEDIES: Registry[type[Remedy]] = Registry("remedy", "gradguard.remedies")
SINKS: Registry[type[Sink]] = Registry("sink", "gradguard.sinks")

NotifyFunction = Callable[[Finding], None]
