"""Ranks that train together run the same collectives at each step, whatever befalls the guard of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradguard.errors import GradguardError
from gradguard.evidence.stats import StepStats
from gradguard.flow.exchange import Exchange, take_in
from gradguard.gradients.monitor import Monitor


class Pace:
    """What this rank has done at a step for the others, who wait for it.

    Args:
        monitor: measures sharded gradients together with the other ranks.

    Attributes:
        num_owed: steps for which the others wait for this rank's norms before they know that its guard is off.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._exchange = Exchange(monitor.params[0].device)
        self._has_said = False
        self._has_measured = False
        self.num_owed = 1

    @classmethod
    def of(cls, monitor: Monitor) -> Pace | None:
        """Return the pace to keep, None for a process on its own."""
        return cls(monitor) if Exchange.is_needed() else None

    def begin(self) -> None:
        """A step begins."""
        self._has_said = self._has_measured = False

    def say(self, losses: Sequence[Any]) -> Tensor:
        """Return what all ranks say, see `Exchange.gather`; a measurement of the gradients follows."""
        said = self._exchange.gather(losses)
        self._has_said = True
        return said

    def hear(self, said: Sequence[Sequence[float]], stats: StepStats) -> None:
        """Take in what the ranks said.

        Raises:
            GradguardError: the guard of one is off, and gradients are sharded: all ranks measure these, or none.
        """
        off = take_in(said, stats)
        if off and self._monitor.is_sharded:
            raise GradguardError(f"the guard of rank {off[0]} is off, and the gradients are sharded")

    def measured(self) -> None:
        """Note that this rank took part in the measurement."""
        self._has_measured = True

    def keep(self) -> None:
        """Do what the others wait for at a step that this rank does not judge."""
        if not self._has_said:
            self._exchange.gather((), is_on=False)
        if self.num_owed and self._monitor.is_sharded:
            self.num_owed -= 1
            if not self._has_measured:
                self._monitor.launch()
        self.begin()
