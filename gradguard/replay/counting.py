"""How often variants of diagnoses raise the alarm on recorded runs, all of them in one pass over each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gradguard.contracts import Diagnosis
from gradguard.evidence.stats import StepStats
from gradguard.flow.judgement import Judgement
from gradguard.policy.schema import Policy, Rule
from gradguard.records import SEVERITIES, Severity
from gradguard.replay.recorded import Recorded
from gradguard.replay.rejudge import Found, Rejudge


class Variant(NamedTuple):
    """A diagnosis on some parameters, and what of it counts.

    Args:
        diagnosis: with its options.
        parameters: patterns, None for all.
        min_severity: from which a finding is an alarm.
        is_counted: every alarm is counted; else the first one settles it.
    """

    diagnosis: Diagnosis[Any]
    parameters: tuple[str, ...] | None = None
    min_severity: Severity = "warn"
    is_counted: bool = False


def count_alarms(
    runs: Sequence[Recorded],
    variants: Sequence[Variant],
    progress: Callable[[int], None] = lambda done: None,
    on_fault: Callable[[str, Exception], None] = lambda what, error: None,
) -> list[int]:
    """Return how many alarms each variant raises on all runs together; 1 for "some" where they are not counted.

    Args:
        runs: recorded ones.
        variants: what is tried.
        progress: called with the number of steps so far, now and then.
        on_fault: called with (what failed, error) when a diagnosis raises.
    """
    counter = _Counter(variants)
    before = 0
    for run in runs:
        rules = [
            Rule(name=str(index), when=variant.diagnosis, do=("notify",), parameters=variant.parameters)
            for index, variant in enumerate(variants)
            if index not in counter.settled
        ]
        policy = Policy(mode="observe", rules=tuple(rules), sinks=())
        with np.errstate(over="ignore"):  # a bound on what a norm must exceed may lie beyond float32
            Rejudge(run, policy, counter, on_fault).run(partial(_report, progress, before))
        before += run.num_rows
        progress(before)
    return counter.counts


class _Counter:
    """Counts alarms; see `Listener`. A variant that is settled is not asked any more."""

    has_routine = False

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = variants
        self.counts = [0] * len(variants)
        self.settled: set[int] = set()

    def begins(self, judgement: Judgement, stats: StepStats) -> None:
        self._judgement = judgement
        self._silence()

    def found(self, found: Found) -> None:
        is_news = False
        for rule, finding in found:
            index = int(rule.name)
            variant = self._variants[index]
            if SEVERITIES.index(finding.severity) < SEVERITIES.index(variant.min_severity) or index in self.settled:
                continue
            self.counts[index] += 1
            if not variant.is_counted:
                self.settled.add(index)
                is_news = True
        if is_news:
            self._silence()

    def _silence(self) -> None:
        for entry in self._judgement.entries:
            if all(int(rule.name) in self.settled for _, rule in entry.rules):
                entry.update = _rest

    def routine(self, has_findings: bool) -> None:
        pass

    def forgets(self, is_in_run: bool) -> bool:
        return is_in_run

    def resumed(self, state: dict[str, Any]) -> None:
        pass

    def taken_in(self, step: int) -> bool:
        return False


def _report(progress: Callable[[int], None], before: int, steps: int) -> None:
    progress(before + steps)


def _rest(state: Any, stats: StepStats) -> tuple[Any, None]:
    return state, None
