"""How close healthy runs came to each threshold, found by replay: which value of it would have raised an alarm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradguard.contracts import Diagnosis
from gradguard.policy.schema import Policy, Rule
from gradguard.replay.counting import Variant, count_alarms
from gradguard.replay.recorded import Recorded
from gradguard.replay.thresholds import FURTHEST, Move, furthest, moved, moves


POINTS = 4  # that are tried between two bounds in one pass
ENDS = (1.0 / FURTHEST, FURTHEST)
TELLING = 0.98  # of the distance of any threshold by itself, below which moving several says something new
PASSES = 3  # over the runs, after the first: 5^3 parts of ln(10), so that a factor is known within 2 %


@dataclass
class Margin:
    """Where the alarms of one rule begin when some of its thresholds move and the others stay as they are.

    Args:
        rule: of the policy.
        move: which thresholds, and how.
        alarms: at the present thresholds.
        quiet: factor nearest to 1 at which no alarm is raised, None when there is none within 10.
        loud: likewise, at which one is.
    """

    rule: Rule
    move: Move
    alarms: int = 0
    quiet: float | None = None
    loud: float | None = None

    @property
    def edge(self) -> float | None:
        """The factor at which healthy runs alarm, or where they do already, fall silent; None: not within 10."""
        return self.quiet if self.alarms else self.loud

    @property
    def distance(self) -> float | None:
        """How far the edge is from the present thresholds, as a factor >= 1."""
        return None if self.edge is None else max(self.edge, 1.0 / self.edge)

    def values(self, factor: float) -> dict[str, float]:
        """Return the thresholds at a factor."""
        return self.move.values(diagnosis_of(self.rule), factor)


@dataclass
class Margins:
    """What replays of healthy runs say about a policy.

    Args:
        num_steps: replayed.
        alarms: by rule.
        margins: of every threshold, and of all thresholds of a rule together.
        faults: what failed, one sentence each.
    """

    num_steps: int
    alarms: dict[str, int]
    margins: list[Margin]
    faults: list[str]


def num_passes() -> int:
    """Return how often `measure_margins` goes through the runs."""
    return PASSES + 1


def measure_margins(
    runs: Sequence[Recorded], policy: Policy, progress: Callable[[int], None] = lambda done: None
) -> Margins:
    """Return how far healthy runs stay from each threshold of a policy.

    Args:
        runs: recorded, and healthy: whatever is found in them is a false alarm.
        policy: whose rules are measured.
        progress: called with the number of steps so far, over all passes.
    """
    num_steps = sum(run.num_rows for run in runs)
    faults: dict[str, None] = {}
    rules = [rule for rule in policy.rules if isinstance(rule.when, Diagnosis)]
    is_scaled = any(bool((run.column("loss_scale") != 1.0).any()) for run in runs)
    tested = [rule for rule in rules if is_scaled or not diagnosis_of(rule).sees_scaler_skips]
    margins = [Margin(rule, move) for rule in tested for move in moves(diagnosis_of(rule))]
    done = 0

    def count(variants: list[Variant]) -> list[int]:
        nonlocal done
        before = done
        counts = count_alarms(
            runs,
            variants,
            lambda steps: progress(before + steps),
            lambda what, error: faults.update({f"{what} failed: {error!r}": None}),
        )
        done = before + num_steps
        return counts

    present = [_variant(rule, diagnosis_of(rule), is_counted=True) for rule in rules]
    ends = [(margin, furthest(diagnosis_of(margin.rule), margin.move, end)) for margin in margins for end in ENDS]
    counts = count(present + [_tried(margin, factor) for margin, factor in ends])
    alarms = {rule.name: number for rule, number in zip(rules, counts, strict=False)}
    for margin in margins:
        margin.alarms = alarms[margin.rule.name]
    at_ends = [(margin, factor, number) for (margin, factor), number in zip(ends, counts[len(rules) :], strict=True)]
    searched = [margin for margin in margins if _bracket(margin, [item[1:] for item in at_ends if item[0] is margin])]
    for _ in range(PASSES):
        points = {id(margin): _between(margin) for margin in searched}
        tried = [(margin, factor) for margin in searched for factor in points[id(margin)]]
        counts = count([_tried(margin, factor) for margin, factor in tried])
        for (margin, factor), number in zip(tried, counts, strict=True):
            _narrow(margin, factor, number)
    return Margins(num_steps, alarms, _telling(margins), list(faults))


def diagnosis_of(rule: Rule) -> Diagnosis[Any]:
    """Return the diagnosis of a rule that has one."""
    if not isinstance(rule.when, Diagnosis):
        raise ValueError(f"rule {rule.name!r} has no diagnosis: it applies at every step")
    return rule.when


def _telling(margins: list[Margin]) -> list[Margin]:
    """Leave out moves of several thresholds that come no further than one of them by itself."""
    told = []
    for margin in margins:
        others = [other for other in margins if other.rule is margin.rule and other is not margin]
        if len(margin.move.names) > 1:
            nearest = min((other.distance for other in others if other.distance is not None), default=math.inf)
            if margin.distance is None or not margin.distance < TELLING * nearest:
                continue
        told.append(margin)
    return told


def _variant(rule: Rule, diagnosis: Diagnosis[Any], is_counted: bool = False) -> Variant:
    return Variant(diagnosis, rule.parameters, rule.min_severity, is_counted)


def _tried(margin: Margin, factor: float) -> Variant:
    diagnosis = moved(diagnosis_of(margin.rule), margin.move, factor)
    return _variant(margin.rule, diagnosis_of(margin.rule) if diagnosis is None else diagnosis)


def _bracket(margin: Margin, ends: Sequence[tuple[float, int]]) -> bool:
    """Set the bounds between which alarms begin; return whether there are such."""
    for factor, count in ends:
        if margin.alarms and not count:
            margin.quiet, margin.loud = factor, 1.0
        elif count and not margin.alarms:
            margin.quiet, margin.loud = 1.0, factor
    return margin.edge is not None


def _between(margin: Margin) -> list[float]:
    if margin.quiet is None or margin.loud is None:
        return []
    return [float(factor) for factor in np.geomspace(margin.quiet, margin.loud, POINTS + 2)[1:-1]]


def _narrow(margin: Margin, factor: float, count: int) -> None:
    """Take in what was found at a factor; points come from the quiet end to the loud one."""
    if margin.quiet is None or margin.loud is None:
        return
    if not min(margin.quiet, margin.loud) < factor < max(margin.quiet, margin.loud):
        return
    if count:
        margin.loud = factor
    else:
        margin.quiet = factor
