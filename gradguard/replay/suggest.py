"""Thresholds for a policy, from where healthy runs begin to alarm; each is tried on the runs before it is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gradguard.policy.schema import Rule
from gradguard.replay.counting import Variant, count_alarms
from gradguard.replay.margins import Margin, Margins, diagnosis_of
from gradguard.replay.rates import highest_rate, rate
from gradguard.replay.recorded import Recorded
from gradguard.replay.thresholds import furthest, moved


TRIES = 4  # passes over the runs until suggestions hold
WORTH = 1.05  # change of a threshold below which it is left as it is


@dataclass
class Suggestion:
    """Other thresholds for a rule.

    Args:
        margin: where its alarms begin.
        factor: on the thresholds that move.
        rule: with the thresholds.
        alarms: that it still raises on the runs.
    """

    margin: Margin
    factor: float
    rule: Rule
    alarms: int = 0

    @property
    def values(self) -> dict[str, float]:
        """The thresholds by name, as they are in the rule."""
        diagnosis = diagnosis_of(self.rule)
        return {name: getattr(diagnosis, name) for name in self.margin.move.names}


def suggest(
    runs: Sequence[Recorded],
    margins: Margins,
    distance: float,
    tighten: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Suggestion]:
    """Return other thresholds for rules that raise false alarms, and if wanted for those that could see more.

    Args:
        runs: that the margins were measured on.
        margins: see `measure_margins`.
        distance: factor between where the runs begin to alarm and the threshold that is suggested, > 1.
        tighten: bring thresholds nearer that are further away than that.
        progress: called with the number of steps so far, over all tries.
    """
    chosen = [margin for rule in margins.alarms if (margin := _nearest(margins, rule)) is not None]
    made = [_suggestion(margin, _aim(margin, distance)) for margin in chosen if margin.alarms or tighten]
    suggestions = [one for one in made if max(one.factor, 1.0 / one.factor) > WORTH]
    done = 0
    for _ in range(TRIES):
        variants = [
            Variant(diagnosis_of(one.rule), one.rule.parameters, one.rule.min_severity, is_counted=True)
            for one in suggestions
        ]
        if not variants:
            break
        counts = count_alarms(runs, variants, partial(_report, progress, done))
        done += margins.num_steps
        for one, count in zip(suggestions, counts, strict=True):
            one.alarms = count
        if not any(counts):
            break
        suggestions = [_calmer(one) if one.alarms else one for one in suggestions]
    return suggestions


def _report(progress: Callable[[int], None], before: int, steps: int) -> None:
    progress(before + steps)


def _nearest(margins: Margins, rule: str) -> Margin | None:
    """Return the smallest move that silences a rule, or for a quiet one, that makes it alarm."""
    known = [margin for margin in margins.margins if margin.rule.name == rule and margin.distance is not None]
    return min(known, key=lambda margin: margin.distance or math.inf, default=None)


def _aim(margin: Margin, distance: float) -> float:
    """Return the factor on the thresholds that keeps the distance from the edge."""
    edge = margin.edge or 1.0
    if margin.alarms:
        return edge * distance if edge > 1.0 else edge / distance
    return min(1.0, edge * distance) if edge < 1.0 else max(1.0, edge / distance)


def _suggestion(margin: Margin, factor: float) -> Suggestion:
    diagnosis = diagnosis_of(margin.rule)
    factor = furthest(diagnosis, margin.move, factor)
    found = moved(diagnosis, margin.move, factor)
    if found is not None:
        rounded = {name: float(f"{getattr(found, name):.3g}") for name in margin.move.names}
        found = found.model_copy(update=rounded)
    return Suggestion(margin, factor, margin.rule.model_copy(update={"when": found or diagnosis}))


def _calmer(suggestion: Suggestion) -> Suggestion:
    """Return one that alarms less: half-way back where it was tightened, further out where it was loosened."""
    factor, margin = suggestion.factor, suggestion.margin
    return _suggestion(margin, factor**1.5 if margin.alarms else math.sqrt(factor))


def reason(suggestion: Suggestion, num_steps: int) -> str:
    """Return why a threshold is suggested, with the numbers, in a sentence or two."""
    margin = suggestion.margin
    edge = " and ".join(f"{name} {value:.3g}" for name, value in margin.values(margin.edge or 1.0).items())
    now = " and ".join(f"{name} {value:g}" for name, value in margin.values(1.0).items())
    if not margin.alarms:
        return (
            f"Without a false alarm in {num_steps:,} steps at {now}. The runs would begin to raise one at {edge}: "
            "there was room to see more."
        )
    alarms = f"{margin.alarms:,} false alarm{'s' if margin.alarms > 1 else ''} in {num_steps:,} steps at {now}"
    left = f" {suggestion.alarms:,} of them are left." if suggestion.alarms else ""
    return (
        f"{alarms}: {rate(margin.alarms, num_steps):.3g} per 100,000, below "
        f"{highest_rate(margin.alarms, num_steps):.3g} with 95 % confidence. The runs are quiet from {edge} on.{left}"
    )
