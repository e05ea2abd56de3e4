"""What a limit remembers from step to step beyond the rolling windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradguard.evidence.stats import FloatArray
from gradguard.limits.norm_sets import NormSets, Rows, WideArray
from gradguard.registry import Options


LARGEST = float(np.finfo(np.float32).max)
BoolArray = npt.NDArray[np.bool_]
CHECK_EVERY = 10  # steps between looks at whether the level has changed for good: a median of many rows takes a while


class Limit(Options):
    """A limit that follows the run. Its first field names its kind in a policy file."""


class TrackedLimit(Limit):
    """A limit with a memory of its own."""

    @property
    def is_foreseeable(self) -> bool:
        """Whether the limit is known before the norm that it is for."""
        return True

    @abstractmethod
    def track(self, sets: NormSets) -> Tracker:
        """Return an empty memory for these sets of parameters."""


class Tracker(ABC):
    """The memory of one limit, over n sets of parameters; all arrays are (n,) or (steps, n).

    A norm is accepted when it is finite and > 0. What is not leaves no trace: neither a NaN nor the zero gradient of a
    parameter that took no part in a step.

    Args:
        sets: whose norms are followed.
    """

    state: ClassVar[tuple[str, ...]]  # the attributes that change: arrays, numbers and windows

    def __init__(self, sets: NormSets) -> None:
        self.sets = sets
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """Start afresh."""

    @abstractmethod
    def learn(self, norms: WideArray, accepted: BoolArray, total: float) -> None:
        """Take in one step's norms.

        Args:
            norms: (n,) as measured, 1 where it is not accepted.
            accepted: (n,) bool.
            total: norm of the whole gradient.
        """

    @abstractmethod
    def limits(self, sets: Sequence[Rows], norms: WideArray, total: float) -> WideArray:
        """Return (n,) limits for the norms of sets at this step, from what came before it.

        Args:
            sets: of parameters.
            norms: (n,) theirs.
            total: norm of the whole gradient.

        Returns:
            NaN where nothing is known yet, infinity where the norm is within what is usual.
        """

    def push(self, levels: FloatArray) -> None:
        """Take in an accepted step's (P + 1,) levels, as measured."""
        norms = self.sets.norms(levels)
        accepted = (norms > 0.0) & (norms < np.inf)
        self.learn(np.where(accepted, norms, 1.0), accepted, float(levels[0]))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the memory."""
        return {name: _copy(getattr(self, name)) for name in self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a copied memory back."""
        self.forget()
        for name in self.state:
            known = getattr(self, name)
            if hasattr(known, "load_state_dict"):
                known.load_state_dict(state[name])
            elif isinstance(known, np.ndarray):
                setattr(self, name, np.array(state[name], dtype=known.dtype))
            else:
                setattr(self, name, type(known)(state[name]))


def as_levels(norms: WideArray, accepted: BoolArray) -> FloatArray:
    """Return accepted norms as a rolling window takes them, NaN for the others."""
    return np.where(accepted, np.minimum(norms, LARGEST), np.nan).astype(np.float32)


def _copy(value: Any) -> Any:
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return value.copy() if isinstance(value, np.ndarray) else value
