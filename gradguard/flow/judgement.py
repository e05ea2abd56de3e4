"""The diagnoses of a policy with their states, and the rolling statistics that they share. No torch.

A recorded run can be put through it again: the same numbers give the same findings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, nan
from statistics import median
from typing import Any

import numpy as np

from gradguard.contracts import Diagnosis
from gradguard.evidence.running import LossWindow, NormWindow
from gradguard.evidence.stats import FloatArray, ParameterTable, StepStats
from gradguard.evidence.trigger import Calm, Trigger
from gradguard.flow.story import Story
from gradguard.limits.norm_sets import NormSets, Rows
from gradguard.limits.tracked import TrackedLimit
from gradguard.policy.patterns import select
from gradguard.policy.schema import Policy, Rule
from gradguard.records import Finding


NUM_FIRST = 5  # accepted losses whose median is the initial loss


class Entry:
    """One diagnosis on one set of parameters, and the rules that listen to it."""

    def __init__(self, diagnosis: Diagnosis[Any], rows: tuple[int, ...], table: ParameterTable) -> None:
        self.diagnosis = diagnosis
        self.rows = rows
        self.rules: list[tuple[int, Rule]] = []
        self.update = diagnosis.update
        self.pass_by = diagnosis.pass_by
        self.state = diagnosis.init(table, rows)


def _rest(state: Any, stats: StepStats) -> tuple[Any, None]:
    """Stand in for a diagnosis that raised."""
    return state, None


class Judgement:
    """Finds what is wrong with a step.

    Args:
        policy: its rules say which diagnoses run, on which parameters.
        table: the parameter tensors.
        horizon: size of a loss window that is kept in any case.
        on_fault: called with (what failed, error) when a diagnosis raises; it is switched off.

    Attributes:
        num_losses: finite losses taken in so far; neither a rollback nor a new level makes it fall.
    """

    def __init__(
        self, policy: Policy, table: ParameterTable, horizon: int, on_fault: Callable[[str, Exception], None]
    ) -> None:
        self._on_fault = on_fault
        self.table = table
        self.rows_of: dict[str, tuple[int, ...] | None] = {}
        self.entries: list[Entry] = []
        shared: dict[tuple[str, str, tuple[int, ...] | None], Entry] = {}
        everything = tuple(range(len(table)))
        sizes: set[int] = set()
        loss_sizes = {horizon}
        tracked: dict[TrackedLimit, dict[Rows, None]] = {}
        for index, rule in enumerate(policy.rules):
            rows = None if rule.parameters is None else tuple(select(rule.parameters, table.names))
            self.rows_of[rule.name] = rows
            for remedy in (remedy for remedies in rule.ladder() for remedy in remedies):
                sizes.update(remedy.windows())
                for limit, sets in remedy.tracked(table, rows):
                    tracked.setdefault(limit, {}).update(dict.fromkeys(sets))
            if not isinstance(rule.when, Diagnosis):
                continue
            sizes.update(rule.when.windows())
            loss_sizes.update(rule.when.loss_windows())
            key = (rule.when.name, rule.when.model_dump_json(), None if rows == everything else rows)
            if key not in shared:
                shared[key] = Entry(rule.when, everything if rows is None else rows, table)
                self.entries.append(shared[key])
            shared[key].rules.append((index, rule))
        self.windows = {size: NormWindow(len(table) + 1, size) for size in sorted(sizes)}
        self.losses = {size: LossWindow(size) for size in sorted(loss_sizes)}
        self.trackers = {limit: limit.track(NormSets(tuple(sets))) for limit, sets in tracked.items()}
        self.num_losses = 0
        self._first_losses: list[float] = []
        self._initial_loss = nan
        self._watchful = [entry for entry in self.entries if not entry.diagnosis.rests_when_quiet()]
        self.story = Story()
        self._was_quiet = False  # diagnoses that rest are still asked on the first quiet step
        self._scaler_entries = [entry for entry in self.entries if entry.diagnosis.sees_scaler_skips]

    def lend(self, stats: StepStats) -> None:
        """Let a step's diagnoses and remedies read what is known of the steps before it."""
        stats.windows, stats.losses, stats.trackers = self.windows, self.losses, self.trackers

    def judge(self, stats: StepStats) -> list[tuple[Rule, Finding]]:
        """Return what every rule's diagnosis found at this step, in the policy's order."""
        self.lend(stats)
        stats.initial_loss, stats.num_losses = self._initial_loss, self.num_losses
        stats.first_loss = self._first_losses[0] if self._first_losses else nan
        found: list[tuple[Entry, Finding]] = []
        is_quiet = stats.is_quiet()
        entries = self._scaler_entries if stats.found_inf else self.entries
        if is_quiet and self._was_quiet:
            entries = self._watchful
        self._was_quiet = is_quiet
        for entry in entries:
            try:
                entry.state, finding = entry.update(entry.state, stats)
            except Exception as error:  # a diagnosis may be anyone's; the training must not end with it
                self._switch_off(entry, error)
                continue
            if finding is not None:
                found.append((entry, finding))
        if not found:
            return []
        findings = self.story.tell([(type(entry.diagnosis), finding) for entry, finding in found])
        told = [
            (index, rule, finding)
            for (entry, _), finding in zip(found, findings, strict=True)
            for index, rule in entry.rules
        ]
        told.sort(key=lambda item: item[0])
        return [(rule, finding) for _, rule, finding in told]

    def _switch_off(self, entry: Entry, error: Exception) -> None:
        entry.update = _rest
        self._watchful = [other for other in self._watchful if other is not entry]
        self._on_fault(f"diagnosis {entry.diagnosis.name!r} (now off)", error)

    def calm(self, stats: StepStats) -> Calm | None:
        """Return the bounds within which no diagnosis finds anything at the steps to come, None if one has none."""
        whole = Calm()
        for entry in self._watchful:
            try:
                calm = entry.diagnosis.calm(entry.state, stats)
            except Exception as error:  # as in `judge`
                self._switch_off(entry, error)
                return None
            if calm is None:
                return None
            levels = calm.levels if whole.levels is None else whole.levels
            if calm.levels is not None and whole.levels is not None:
                levels = np.minimum(whole.levels, calm.levels)
            whole = Calm(
                min(whole.steps, calm.steps),
                max(whole.loss_above, calm.loss_above),
                calm.loss_most if not calm.loss_most > whole.loss_most else whole.loss_most,
                levels,
                min(whole.reach, calm.reach),
            )
        return whole

    def pass_by(self, stats: StepStats) -> None:
        """Take in a step that `calm` had covered."""
        self.lend(stats)
        for entry in self._watchful:
            try:
                entry.state = entry.pass_by(entry.state, stats)
            except Exception as error:  # as in `judge`
                self._switch_off(entry, error)

    def triggers(self, stats: StepStats) -> dict[str, Sequence[Trigger]]:
        """Return by rule on what its diagnosis will fire at the step that `stats` is about."""
        self.lend(stats)
        return {
            rule.name: entry.diagnosis.triggers(entry.state, stats)
            for entry in self.entries
            if entry.diagnosis.is_foreseeable and entry.update is not _rest
            for _, rule in entry.rules
        }

    def learn(self, levels: FloatArray, loss: float, has_loss: bool, is_plain: bool = False) -> None:
        """Take an accepted step's norms, as measured, and its loss into the rolling statistics.

        Args:
            levels: (P + 1,) float32.
            loss: of the step; not read without `has_loss`.
            has_loss: whether one was observed.
            is_plain: all levels are known to be finite and > 0.
        """
        for window in self.windows.values():
            window.push(levels, is_plain)
        for tracker in self.trackers.values():
            tracker.push(levels)
        if has_loss and isfinite(loss):
            self.num_losses += 1
            for losses in self.losses.values():
                losses.push(loss)
            if len(self._first_losses) < NUM_FIRST:
                self._first_losses.append(loss)
                self._initial_loss = median(self._first_losses)

    def forget(self) -> None:
        """Start the rolling statistics and the diagnoses afresh; the story goes on."""
        for window in self.windows.values():
            window.forget()
        for losses in self.losses.values():
            losses.forget()
        for tracker in self.trackers.values():
            tracker.forget()
        self._first_losses, self._initial_loss = [], nan
        for entry in self.entries:
            entry.state = entry.diagnosis.init(self.table, entry.rows)
        self._was_quiet = False

    def roll_back(self, state: dict[str, Any]) -> None:
        """Put copied windows and states back, but remember what was found and counted since: the story goes on."""
        told, num_losses = self.story.told, self.num_losses
        self.load_state_dict(state)
        self.story.told, self.num_losses = told, num_losses

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all windows and states."""
        return {
            "windows": {size: window.state_dict() for size, window in self.windows.items()},
            "losses": {size: losses.state_dict() for size, losses in self.losses.items()},
            "trackers": [tracker.state_dict() for tracker in self.trackers.values()],
            "num_losses": self.num_losses,
            "first_losses": list(self._first_losses),
            "states": [entry.diagnosis.dump_state(entry.state) for entry in self.entries],
            "told": dict(self.story.told),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put copied windows and states back."""
        for size, window in self.windows.items():
            window.load_state_dict(state["windows"][size])
        for size, losses in self.losses.items():
            losses.load_state_dict(state["losses"][size])
        for tracker, known in zip(self.trackers.values(), state["trackers"], strict=True):
            tracker.load_state_dict(known)
        self.num_losses = state["num_losses"]
        self._first_losses = list(state["first_losses"])
        self._initial_loss = median(self._first_losses) if self._first_losses else nan
        for entry, dumped in zip(self.entries, state["states"], strict=True):
            entry.state = entry.diagnosis.load_state(entry.diagnosis.init(self.table, entry.rows), dumped)
        self.story.told = dict(state["told"])
        self._was_quiet = False
