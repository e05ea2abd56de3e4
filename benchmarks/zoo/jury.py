"""Lets every rule set and every statistic follow one and the same run."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.zoo.extremes import STATISTICS, Extremes
from benchmarks.zoo.rivals import RIVALS
from benchmarks.zoo.rule_set import RuleSet
from benchmarks.zoo.signals import Signals


@dataclass
class RivalAlarm:
    """One alarm of a rule set over one run.

    Args:
        name: of the alarm.
        kinds: diagnoses of ours that name the same trouble.
        first_step: at which it was raised.
        first_since: the first at or after the onset of the trouble; None when there was none.
        count: steps at which it was raised.
    """

    name: str
    kinds: tuple[str, ...]
    first_step: int
    first_since: int | None = None
    count: int = 0


class Jury:
    """The rule sets over one run; each of a run's optimizers has its own seats, and what they say is put together.

    Args:
        budget: steps of the run.
        onset: step at which its trouble begins.
    """

    def __init__(self, budget: int, onset: int) -> None:
        self._budget, self._onset = budget, onset
        self._alarms: dict[str, dict[str, RivalAlarm]] = {name: {} for name in RIVALS}
        self._extremes: list[Extremes] = []

    def seat(self) -> Seat:
        """Return what listens to one more optimizer."""
        extremes = Extremes()
        self._extremes.append(extremes)
        return Seat(self, extremes, [rival(self._budget) for rival in RIVALS.values()])

    def note(self, rival: RuleSet, name: str, step: int) -> None:
        """Write down an alarm."""
        alarm = self._alarms[rival.name].setdefault(name, RivalAlarm(name, tuple(rival.kinds[name]), step))
        alarm.count += 1
        if alarm.first_since is None and step >= self._onset:
            alarm.first_since = step

    def verdicts(self) -> dict[str, tuple[RivalAlarm, ...]]:
        """Return the alarms by rule set."""
        return {name: tuple(alarms.values()) for name, alarms in self._alarms.items()}

    def extremes(self) -> dict[str, float]:
        """Return the most alarming extreme of the optimizers, by statistic; what was never seen is left out."""
        worst = {"high": max, "low": min}
        seen = [extremes.values for extremes in self._extremes]
        return {
            name: worst[statistic.side](values[name] for values in seen if name in values)
            for name, statistic in STATISTICS.items()
            if any(name in values for values in seen)
        }


class Seat:
    """Hands the signals of one optimizer to its rule sets and statistics."""

    def __init__(self, jury: Jury, extremes: Extremes, rivals: list[RuleSet]) -> None:
        self._jury, self._extremes, self._rivals = jury, extremes, rivals

    def __call__(self, signals: Signals) -> None:
        self._extremes.update(signals)
        for rival in self._rivals:
            for name in rival.update(signals):
                self._jury.note(rival, name, signals.step)
