"""Where NaN or infinity came into a step, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args


Stage = Literal["input", "weights", "forward", "loss", "backward", "unknown"]


@dataclass(frozen=True)
class Origin:
    """The first place at which something was not finite.

    Args:
        stage: "input" (what the model was given), "weights" (an entry of a parameter out of all proportion), "forward"
            (in the model), "loss" (behind its output), "backward" (in the gradients alone) or "unknown".
        place: name of the input, parameter or module; "" for the model itself.
        kind: class of that module.
        after: the last module before it that was finite, "" for none. In the backward pass, the one before is the one
            nearer to the loss.
        before: the first module that was given something not finite, when it began between two modules.
        parameters: names of those that belong to the place.
        entries: of the input that are not finite.
        samples: positions of the first samples that hold them, from 0.
        num_bad: samples that hold them.
        num_samples: samples in the batch.
        largest: size of the largest entry that goes into the place; of the weight, for stage "weights".
        usual: size of the entries beside it, for stage "weights".
        is_likely: it is likely, not sure, that it is here.
        seen_at: step at which it was found, when that is not this one: then it is likely to be the same again.
        why: what kept from knowing more, one clause.

    Raises:
        ValueError: another stage.
    """

    stage: Stage
    place: str = ""
    kind: str = ""
    after: str = ""
    before: str = ""
    parameters: tuple[str, ...] = ()
    entries: int = 0
    samples: tuple[int, ...] = ()
    num_bad: int = 0
    num_samples: int = 0
    largest: float = 0.0
    usual: float = 0.0
    is_likely: bool = False
    seen_at: int | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if self.stage not in get_args(Stage):
            raise ValueError(f"unknown origin {self.stage!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return what differs from the defaults: texts, numbers, and lists of these.

        Example:
            >>> Origin("forward", place="c", samples=(1,)).as_dict()
            {'stage': 'forward', 'place': 'c', 'samples': [1]}
        """
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in told.items()
            if value != usual[name]
        }

    @classmethod
    def of_dict(cls, told: dict[str, Any]) -> Origin:
        """Return what `as_dict` was asked of.

        Raises:
            ValueError: it is not what that returned.
        """
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
        }
        if not {"stage"} <= set(known) <= {field.name for field in fields(cls)}:
            raise ValueError(f"expected an origin, got {list(known)[:3]}")
        return cls(**known)

    def evidence(self) -> dict[str, int | float | str]:
        """Return it as entries of a finding's evidence, under names that begin with "origin".

        Example:
            >>> Origin("input", place="0", entries=2, samples=(1, 5)).evidence()
            {'origin': 'input', 'origin_place': '0', 'origin_entries': 2, 'origin_samples': '1, 5'}
        """
        told = self.as_dict()
        found: dict[str, int | float | str] = {"origin": told.pop("stage")}
        told.pop("parameters", None)
        for name, value in told.items():
            found[f"origin_{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
        return found
