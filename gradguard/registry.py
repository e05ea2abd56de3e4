"""What a policy can name, and the registries that find it: filled by the leaf files themselves and by plugins."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from gradguard.errors import GradguardError, did_you_mean


class Options(BaseModel):
    """Base of all that a policy file holds: frozen, unknown keys refused, numbers finite and no truth values."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_values(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` where a number belongs, which would otherwise pass for 1."""
        if isinstance(value, bool):
            annotation = cls.model_fields[str(info.field_name)].annotation
            kinds = get_args(annotation) or (annotation,)
            if (int in kinds or float in kinds) and bool not in kinds:
                noun = "a number" if float in kinds else "a whole number"
                raise ValueError(f"{info.field_name!r} should be {noun}, got {str(value).lower()}")
        return value


class Component(Options):
    """Base of everything that a policy names: a frozen set of options plus the words that `gradguard explain` prints.

    Attributes:
        name: the name in a policy; equal to the file's name.
        what: one or two sentences for a newcomer.
        computed: how it is computed, with the formula.
        cure: what a person should change about the model or data (diagnoses).
        source: paper, system or measurement that the formula and the constants come from.
    """

    name: ClassVar[str] = ""
    what: ClassVar[str] = ""
    computed: ClassVar[str] = ""
    cure: ClassVar[str] = ""
    source: ClassVar[str] = ""

    def as_policy(self) -> dict[str, Any]:
        """Return `{name: {option: value}}`, the long form of this component in a policy file."""
        return {self.name: self.model_dump(mode="json")}


C = TypeVar("C", bound="type[Component]")


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
