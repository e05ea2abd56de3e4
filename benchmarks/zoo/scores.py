"""How well the guard, and every other rule set, did on the same runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.zoo.jury import RivalAlarm
from benchmarks.zoo.result import Result


OURS = "gradguard"


@dataclass(frozen=True)
class Verdict:
    """What one contender said about one run.

    Args:
        result: of the run.
        alarms: that were raised; ours at "warn" or above.
    """

    result: Result
    alarms: tuple[RivalAlarm, ...]

    @property
    def is_detected(self) -> bool:
        """Whether any alarm came at or after the onset of the trouble."""
        return any(alarm.first_since is not None for alarm in self.alarms)

    @property
    def is_named(self) -> bool:
        """Whether one of the alarms since the onset names what the set-up expects."""
        expected = set(self.result.expected)
        return any(alarm.first_since is not None and expected & set(alarm.kinds) for alarm in self.alarms)

    @property
    def latency(self) -> int | None:
        """Steps from the onset to the first alarm since then."""
        since = [alarm.first_since for alarm in self.alarms if alarm.first_since is not None]
        return min(since) - self.result.onset if since else None

    @property
    def count(self) -> int:
        """Alarms, each step that raised one counted."""
        return sum(alarm.count for alarm in self.alarms)


def contenders(results: Sequence[Result]) -> list[str]:
    """Return who judged the runs, we first."""
    return [OURS, *dict.fromkeys(name for result in results for name in result.rivals)]


def verdicts(results: Iterable[Result], contender: str) -> list[Verdict]:
    """Return what a contender said about each run that it judged."""
    return [
        Verdict(result, _ours(result) if contender == OURS else result.rivals[contender])
        for result in results
        if contender == OURS or contender in result.rivals
    ]


def _ours(result: Result) -> tuple[RivalAlarm, ...]:
    return tuple(
        RivalAlarm(alarm.diagnosis, (alarm.diagnosis,), alarm.first_step, alarm.first_since, alarm.count)
        for alarm in result.loud
    )


@dataclass(frozen=True)
class Score:
    """A contender's score.

    Args:
        contender: its name.
        detected: failing runs with an alarm since the onset, of how many.
        named: of those detected, how many were rightly named.
        sudden: median latency in steps where the trouble strikes at once; None without any.
        slow: median latency as a share of the budget where it builds up.
        false: healthy runs with an alarm, of how many.
        rate: alarms in 1,000 healthy steps.
        noticed: transient faults with an alarm since the onset, of how many.
    """

    contender: str
    detected: tuple[int, int]
    named: tuple[int, int]
    sudden: float | None
    slow: float | None
    false: tuple[int, int]
    rate: float
    noticed: tuple[int, int]


def score(results: Sequence[Result], contender: str) -> Score:
    """Return how a contender did on these runs."""
    all_verdicts = verdicts(results, contender)
    failing, healthy, transient = (
        [verdict for verdict in all_verdicts if verdict.result.group == group]
        for group in ("failing", "healthy", "transient")
    )
    detected = [verdict for verdict in failing if verdict.is_detected]
    steps = sum(verdict.result.steps for verdict in healthy)
    return Score(
        contender,
        (len(detected), len(failing)),
        (sum(verdict.is_named for verdict in detected), len(detected)),
        _median([v.latency for v in detected if v.result.is_sudden and v.latency is not None]),
        _median([v.latency / v.result.steps for v in detected if not v.result.is_sudden and v.latency is not None]),
        (sum(verdict.count > 0 for verdict in healthy), len(healthy)),
        1000 * sum(verdict.count for verdict in healthy) / max(1, steps),
        (sum(verdict.is_detected for verdict in transient), len(transient)),
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
