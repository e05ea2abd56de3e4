"""What is to go wrong, where and when, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from gradguard.errors import UsageError, did_you_mean


Kind = Literal["nan", "inf", "scale", "zero", "bitflip"]
Place = Literal["gradient", "weight", "batch", "lr"]
Entries = int | Literal["all"] | None

WORDS = {"nan": "NaN", "inf": "Inf", "zero": "zero", "bitflip": "bit flip"}
EVERY_PARAMETER = ("*",)
MAX_EXPONENT_BITS = 11  # of float64, the widest exponent there is


@dataclass(frozen=True)
class Fault:
    """One numeric fault, and the steps at which it strikes.

    A step is one call of `optimizer.step()`, counted from 0 when the injection begins. At step N a "gradient" fault
    strikes in the backward pass and a "batch" fault in the forward pass that lead to that call; a "weight" fault
    strikes before that forward pass and stays; an "lr" fault lasts for that one call.

    Args:
        what: "nan"; "inf" (positive); "scale" (times `factor`); "zero"; "bitflip" (one bit of the exponent is inverted,
            as a memory error does).
        where: "gradient", "weight", "batch" (the floating tensors that enter `module`) or "lr".
        at: the step, or several.
        every: the fault strikes at step `at` (0 if not given) and then again after every so many steps, >= 1.
        parameters: patterns on fully qualified parameter names, as in a policy ("!" excludes, the last match decides).
            The fault strikes in each of the selected parameters; an "lr" fault in each param group that holds one.
        factor: what "scale" multiplies by.
        entries: how many entries of each tensor, chosen at random; "all"; None for one entry ("nan", "inf", "bitflip")
            or all ("scale", "zero").
        exponent_bit: which bit "bitflip" inverts, 0 for the most significant bit of the exponent. That bit is 0 in
            every number of magnitude below 2, so that 0.02 becomes 6.8e36 in float32.
        micro_batch: which backward ("gradient") or training forward pass ("batch") since the last step is struck, 0 for
            the first. A gradient fault acts on the sum accumulated so far. One only, so that a fault is over even when
            `GradScaler` does not call the optimizer.
        rank: the one process that is struck under `torch.distributed`; None for all of them.
        module: fully qualified name of the module whose input a "batch" fault corrupts, "" for the model itself. A
            model that takes token ids needs a module inside: integers cannot be NaN.

    Raises:
        UsageError: the fault makes no sense as given; the message says what to change.

    Example:
        >>> Fault("nan", "gradient", at=20, parameters="*.weight").strikes_at(20)
        True
        >>> [step for step in range(30) if Fault("zero", "weight", at=5, every=10).strikes_at(step)]
        [5, 15, 25]
        >>> Fault("scale", "lr", at=3, factor=300.0).describe()
        'lr x 300'
    """

    what: Kind
    where: Place
    at: int | Iterable[int] | None = None
    every: int | None = None
    parameters: str | Iterable[str] = EVERY_PARAMETER
    factor: float | None = None
    entries: Entries = None
    exponent_bit: int = 0
    micro_batch: int = 0
    rank: int | None = None
    module: str = ""

    def __post_init__(self) -> None:
        # Frozen: normalised once here, so that everything else reads tuples.
        object.__setattr__(self, "parameters", _as_tuple(self.parameters))
        if self.at is not None:
            object.__setattr__(self, "at", _as_tuple(self.at))
        _check_choice("what", self.what, get_args(Kind))
        _check_choice("where", self.where, get_args(Place))
        self._check_steps()
        self._check_options()

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of `at`, as a tuple."""
        return tuple(self.at) if isinstance(self.at, tuple) else ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of `parameters`, as a tuple."""
        return tuple(self.parameters)

    @property
    def num_entries(self) -> int | None:
        """Entries struck in each tensor; None for all of them."""
        if self.entries is None:
            return None if self.what in ("scale", "zero") else 1
        return None if self.entries == "all" else self.entries

    def strikes_at(self, step: int) -> bool:
        """Return whether the fault strikes at this step (0-based)."""
        if self.every is None:
            return step in self.steps
        first = self.steps[0] if self.steps else 0
        return step >= first and (step - first) % self.every == 0

    def describe(self) -> str:
        """Return the fault in a few words, without its steps."""
        return f"{self.where} x {self.factor:g}" if self.what == "scale" else f"{WORDS[self.what]} in {self.where}"

    def _check_steps(self) -> None:
        if self.at is None and self.every is None:
            raise UsageError(
                f"a fault needs its steps, got none; give {self.what!r} `at=20`, `at=[20, 40]` or `every=50`"
            )
        for step in self.steps:
            if not isinstance(step, int) or isinstance(step, bool) or step < 0:
                raise UsageError(f"`at` must hold optimizer steps, integers from 0, got {step!r}")
        if self.at is not None and not self.steps:
            raise UsageError("`at` names no step; give at least one, or use `every`")
        if self.every is not None and (not isinstance(self.every, int) or self.every < 1):
            raise UsageError(f"`every` must be a number of steps, an integer from 1, got {self.every!r}")
        if self.every is not None and len(self.steps) > 1:
            raise UsageError(f"with `every`, `at` is the first step, got {len(self.steps)} steps; give one")

    def _check_options(self) -> None:
        if (self.what == "scale") != (self.factor is not None):
            wanted = "needs a factor, such as factor=300.0" if self.what == "scale" else "takes no factor; use 'scale'"
            raise UsageError(f"a {self.what!r} fault {wanted}")
        if not self.patterns or not all(isinstance(pattern, str) for pattern in self.patterns):
            raise UsageError(f"`parameters` must be a pattern or several, as '*.weight', got {self.parameters!r}")
        if self.where == "batch" and self.patterns != EVERY_PARAMETER:
            raise UsageError("a 'batch' fault strikes no parameters; use `module` to say whose input it corrupts")
        if self.where != "batch" and self.module:
            raise UsageError(f"`module` is for 'batch' faults; a {self.where!r} fault is placed with `parameters`")
        if self.where in ("weight", "lr") and self.micro_batch:
            raise UsageError(f"`micro_batch` is for 'gradient' and 'batch' faults, not for {self.where!r}")
        if self.entries not in (None, "all") and (not isinstance(self.entries, int) or self.entries < 1):
            raise UsageError(f"`entries` must be a count from 1, 'all' or None, got {self.entries!r}")
        if not 0 <= self.exponent_bit < MAX_EXPONENT_BITS:
            raise UsageError(f"`exponent_bit` must be from 0 to {MAX_EXPONENT_BITS - 1}, got {self.exponent_bit!r}")
        for option, value in (("micro_batch", self.micro_batch), ("rank", self.rank)):
            if value is not None and value < 0:
                raise UsageError(f"`{option}` must be from 0, got {value!r}")


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"unknown {option} {value!r} of a fault{did_you_mean(str(value), known)}")
