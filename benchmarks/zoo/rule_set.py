"""What every rule set of others is: alarms from signals, and which trouble each of them names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from benchmarks.zoo.signals import Signals


BLOWN_UP = ("nonfinite", "exploding_gradient", "divergence")
NO_PROGRESS = ("plateau", "divergence", "collapsed_output")
TOO_SMALL = ("update_ratio", "frozen_parameters", "vanishing_gradient")


class RuleSet(ABC):
    """A published set of rules with its published thresholds; one object judges one run of one optimizer.

    Args:
        budget: steps of the run, for rules that wait for a share of it.

    Attributes:
        name: for tables, in the publisher's spelling.
        kinds: for each alarm, the diagnoses of ours that name the same trouble. A generous reading: an alarm is right
            when any of them is among what the set-up expects.
    """

    name: ClassVar[str]
    kinds: ClassVar[Mapping[str, tuple[str, ...]]]

    def __init__(self, budget: int) -> None:
        self.budget = budget

    @abstractmethod
    def update(self, signals: Signals) -> list[str]:
        """Return the names of the alarms that are raised at this step, each once."""
