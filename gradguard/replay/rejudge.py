"""The recorded steps through the diagnoses of a policy, in the order and with the numbers that the run had.

rows + notes --Rejudge--> StepStats --Judgement--> Finding* --> whoever listens
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gradguard.evidence.probe_stats import Activations
from gradguard.evidence.running import FLOAT32_MAX
from gradguard.evidence.stats import FloatArray, ParameterTable, StepStats
from gradguard.flow.judgement import Judgement
from gradguard.policy.schema import Policy, Rule
from gradguard.record import facts
from gradguard.record.statistics import Flag
from gradguard.records import Finding
from gradguard.replay.handover import hand_over
from gradguard.replay.notes import Note
from gradguard.replay.recorded import Recorded, Section


Found = Sequence[tuple[Rule, Finding]]
EVERY = 500  # steps between two reports of progress
_SCALER, _STALE, _REFUSED, _UNJUDGED = map(
    int, (Flag.SKIPPED_BY_SCALER, Flag.STALE, Flag.REFUSED, Flag.UNJUDGED)
)  # operators of IntFlag take a microsecond


class Listener(Protocol):
    """Is told what is found, and says what it means for the rolling statistics.

    Attributes:
        has_routine: it has rules for every step, and is told of each.
    """

    has_routine: bool

    def begins(self, judgement: Judgement, stats: StepStats) -> None:
        """Learn which parameters the steps to come are about."""

    def found(self, found: Found) -> None:
        """Take one judgement's findings."""

    def routine(self, has_findings: bool) -> None:
        """Apply the rules for every step, after what was found, if anything was; see `has_routine`."""

    def forgets(self, is_in_run: bool) -> bool:
        """Return whether the rolling statistics start afresh with what was just done.

        Args:
            is_in_run: they did in the run.
        """

    def resumed(self, state: dict[str, Any]) -> None:
        """Go on from the saved histories of a resumed run."""

    def taken_in(self, step: int) -> bool:
        """Note that so many steps are over; return whether the run ends here."""


class Rejudge:
    """Judges a recorded run.

    Args:
        recorded: the run.
        policy: its rules say what is looked for.
        listener: is told of findings.
        on_fault: called with (what failed, error) when a diagnosis raises; it is off from then on.
    """

    def __init__(
        self, recorded: Recorded, policy: Policy, listener: Listener, on_fault: Callable[[str, Exception], None]
    ) -> None:
        self._recorded, self._policy, self._listener, self._on_fault = recorded, policy, listener, on_fault
        self._notes: Sequence[Note] = recorded.notes or ()
        self._next_note = self._next_probe = 0
        self._wanted = {note.values.get("snapshot") for note in self._notes if note.kind == "roll_back"}
        self._snapshots: dict[int, dict[str, Any]] = {}
        self._facts: dict[str, Any] = {}
        self._has_facts = self._is_late = False
        self._layout = -1
        self.judgement: Judgement
        self._num_losses = 0

    def run(self, progress: Callable[[int], None] = lambda done: None) -> int:
        """Judge all steps; return how many.

        Args:
            progress: called with the number of steps so far, now and then.
        """
        done = 0
        for section in self._recorded.sections():
            if section.layout != self._layout:
                self._begin(section)
            done, is_over = self._go_through(section, progress)
            if is_over:
                return done
        self._follow(self._recorded.num_rows, is_within=False)
        return done

    def _begin(self, section: Section) -> None:
        """The steps to come are about other parameters: nothing that was learnt so far holds for them."""
        while self._layout >= 0 and self._next_note < len(self._notes):
            note = self._notes[self._next_note]
            if note.row > section.first or (note.kind == "layout" and note.values.get("index") == section.layout):
                break
            self._next_note += 1
            self._take(note)
        if self._layout >= 0:
            self._num_losses = self.judgement.num_losses
        self._layout = section.layout
        self.stats = StepStats(len(section.table))
        self.judgement = self._judgement(self._policy, section.table)
        self.judgement.num_losses = self._num_losses
        self._keep(int(section.rows["step"][0]))
        self._listener.begins(self.judgement, self.stats)

    def _judgement(self, policy: Policy, table: ParameterTable) -> Judgement:
        return Judgement(policy, table, policy.horizon, self._on_fault)

    def _go_through(self, section: Section, progress: Callable[[int], None]) -> tuple[int, bool]:
        """Judge the steps of a section; return how many there were so far, and whether the run ends with the last."""
        rows, stats = section.rows, self.stats
        columns = [rows[name].tolist() for name in ("step", "loss", "lr", "global_norm", "loss_scale", "flags")]
        norms = rows["norms"]
        is_plain = np.all((norms > 0.0) & (norms < np.inf), axis=1).tolist()
        position = section.first
        for index, (step, loss, lr, norm, scale, flags) in enumerate(zip(*columns, strict=True)):
            self._follow(position, is_within=False)
            if self._has_facts:
                facts.forget(stats)
                self._has_facts = False
            stats.step, stats.loss, stats.lr, stats.global_norm, stats.loss_scale = step, loss, lr, norm, scale
            stats.has_loss, stats.finite, stats.is_late = loss == loss, math.isfinite(norm), self._is_late
            stats.found_inf, stats.is_stale = flags & _SCALER != 0, flags & _STALE != 0
            self._set_norms(norms[index])
            if self._facts or not stats.finite:
                self._restore_facts()
            stats.is_plain = is_plain[index] and stats.finite and not stats.exact_norms
            if not flags & _UNJUDGED:
                self._judge(is_row=True)
                self._follow(position, is_within=True)
                if stats.finite and not stats.found_inf and not flags & _REFUSED:
                    self.judgement.learn(stats.levels, loss, stats.has_loss, stats.is_plain)
            position += 1
            if self._wanted:
                self._keep(step + 1)
            if self._listener.taken_in(step + 1):
                return position, True
            if not position % EVERY:
                progress(position)
        return position, False

    def _set_norms(self, norms: npt.NDArray[Any]) -> None:
        stats = self.stats
        stats.norms[:] = norms
        stats.levels[0] = min(stats.global_norm, FLOAT32_MAX) if stats.finite else stats.global_norm

    def _restore_facts(self) -> None:
        stats = self.stats
        if self._recorded.notes is None:
            bad = np.flatnonzero(~np.isfinite(stats.norms)).tolist()
            stats.nonfinite = {row: (1, 0) if math.isnan(stats.norms[row]) else (0, 1) for row in bad}
        told, self._facts = self._facts, {}
        facts.restore(stats, told)
        self._has_facts = True

    def _judge(self, is_row: bool) -> None:
        """Judge the step that the stats describe, and let the listener act on it."""
        self._see_probes()
        stats = self.stats
        found = self.judgement.judge(stats)
        stats.activations = stats.updates = None
        has_routine = is_row and self._listener.has_routine and stats.finite and not stats.found_inf
        if found or has_routine:
            measured = stats.measured()
            if found:
                self._listener.found(found)
            if has_routine:
                self._listener.routine(bool(found))
            stats.put_back(measured)
            self._has_facts |= bool(found or stats.exact_norms)  # remedies may have noted some
        if found:
            if self._listener.forgets(is_in_run=False):
                self.judgement.forget()

    def _see_probes(self) -> None:
        probes, stats = self._recorded.probes, self.stats
        while self._next_probe < len(probes) and probes[self._next_probe][0] == stats.step:
            seen = probes[self._next_probe][1]
            self._next_probe += 1
            if isinstance(seen, Activations):
                stats.activations = seen
            elif len(seen.weight_norms) == len(stats.norms):
                stats.updates = seen
                if self._recorded.notes is None:
                    stats.weight_norms = seen.weight_norms

    def _follow(self, row: int, is_within: bool) -> None:
        """Take in what was noted before a row was judged, or between its judgement and its being taken in."""
        while self._next_note < len(self._notes):
            note = self._notes[self._next_note]
            if note.row > row or (note.row == row and note.is_within and not is_within):
                return
            self._next_note += 1
            self._take(note)

    def _take(self, note: Note) -> None:
        stats, judgement, values = self.stats, self.judgement, note.values
        if note.kind == "weights":
            stats.weight_norms = self._of_parameters(values["norms"], stats.weight_norms)
            stats.sgd_reach, stats.shrinkage = values["sgd_reach"], values["shrinkage"]
        elif note.kind == "spreads":
            stats.weight_spreads = self._of_parameters(values["spreads"], stats.weight_spreads)
        elif note.kind == "lateness":
            self._is_late = values["is_late"]
        elif note.kind == "facts":
            self._facts = values
        elif note.kind == "aside":
            self._judge_aside(values)
        elif note.kind == "forget" and values["why"] == "operated":
            judgement.forget()
            self._keep(stats.step)
        elif note.kind == "forget" and self._listener.forgets(is_in_run=True):
            judgement.forget()
        elif note.kind == "roll_back" and values["snapshot"] in self._snapshots:
            judgement.roll_back(self._snapshots[values["snapshot"]])
        elif note.kind == "resumed":
            self._resume(values)

    def _of_parameters(self, values: FloatArray, known: FloatArray) -> FloatArray:
        return values if values.shape == known.shape else known

    def _judge_aside(self, values: dict[str, Any]) -> None:
        """Judge what the run judged without a row."""
        stats = self.stats
        facts.forget(stats)
        if len(values["norms"]) == len(stats.norms):
            facts.restore(stats, values)
            self._set_norms(stats.norms)
            self._judge(is_row=False)
        self._has_facts = True

    def _resume(self, values: dict[str, Any]) -> None:
        """Go on from the state that the run was resumed from."""
        recorded, table = self._recorded, self.judgement.table
        donor = self._judgement(recorded.policy, table) if recorded.policy is not None else None
        self.judgement.load_state_dict(hand_over(values["judgement"], donor, self.judgement))
        kept = values["snapshots"].items()
        self._snapshots |= {step: hand_over(state, donor, self.judgement) for step, state in kept}
        self._listener.resumed(values["intervening"])

    def _keep(self, step: int) -> None:
        """Keep the rolling statistics as they are after so many steps, if the run went back to them."""
        if step in self._wanted:
            self._snapshots[step] = self.judgement.state_dict()
