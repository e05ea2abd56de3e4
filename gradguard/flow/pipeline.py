"""One step through the whole flow: measure, diagnose, decide, act, record.

before_step:  gradients -> StepStats -> Finding* -> Decision -> Change -> record
after_step:   effects off, buffers accepted, and what is due now and then: probes, snapshots, outcomes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradguard.evidence.stats import StepStats
from gradguard.flow import aside, layout
from gradguard.flow.intervention import Intervening
from gradguard.flow.judgement import Judgement
from gradguard.flow.locating import Locating
from gradguard.flow.observed import SampleIds
from gradguard.flow.pace import Pace
from gradguard.flow.periodic import Periodic
from gradguard.flow.provisions import provide
from gradguard.flow.quiet_steps import QuietSteps
from gradguard.flow.routine import Routine
from gradguard.flow.step_report import StepReport
from gradguard.flow.target import Target
from gradguard.gradients.monitor import Monitor
from gradguard.gradients.reset_watch import ResetWatch
from gradguard.optimizer.grad_scale import GradScale, is_foldable
from gradguard.optimizer.loss_scale import LossScale
from gradguard.policy.schema import Policy, Rule
from gradguard.probes.gradient_probe import GradientProbe
from gradguard.probes.schedule import Probes
from gradguard.record.recorder import Recorder
from gradguard.record.statistics import Flag
from gradguard.records import AnyRecord, Finding
from gradguard.snapshots.companions import Companions


class Pipeline:
    """Owns what changes from step to step, and runs the flow; judges each step before it is taken.

    Args:
        monitor: measures the gradients of the user's optimizer.
        policy: what is looked for and what is done about it.
        scaler: the user's GradScaler, or None.
        recorder: takes records and rows.
        on_fault: called with (what failed, error) when a part of the guard fails.
        companions: what is saved and restored beside model and optimizer.

    Attributes:
        reasons_to_wait: why the host waits at every step although the policy asks it not to.
    """

    def __init__(
        self,
        monitor: Monitor,
        policy: Policy,
        scaler: torch.amp.GradScaler | None,
        recorder: Recorder,
        on_fault: Callable[[str, Exception], None],
        companions: Companions | None = None,
    ) -> None:
        self.policy = policy
        self.recorder = recorder
        self.reasons_to_wait: Sequence[str] = ()
        self.on_fault = on_fault
        self.monitor = monitor
        self.scale = LossScale(scaler)
        self.step = 0
        self.stats = StepStats(len(self.monitor.table))
        self.target = Target(monitor.model, monitor.optimizer, self.stats)
        self.judgement = Judgement(policy, self.monitor.table, policy.horizon, on_fault)
        self.intervening = Intervening(policy, self.target, self.judgement.rows_of, recorder, on_fault)
        self.routine = Routine(policy, self.judgement.rows_of, on_fault)
        self.findings: list[Finding] = []
        self.records: list[AnyRecord] = []
        provide(self, companions)
        self.pace = Pace.of(monitor)
        self.locating = Locating(policy, monitor, self.target)
        self.probes = Probes.of(policy, monitor, recorder, on_fault)
        self.gradient_probe = GradientProbe(policy.monitor, recorder, on_fault)
        self.watch = ResetWatch(self.monitor.params)
        self.periodic = Periodic(policy, self._probe, self.target, self.intervening)
        self.start_versions: list[int] = []
        self.quiet = QuietSteps(self)
        self.read_parameters()
        self._set_up()

    def _set_up(self) -> None:
        """Make what another way to wait for the device needs beside all this."""

    def before_step(self, losses: Sequence[Any], sample_ids: SampleIds = ()) -> None:
        """Judge the gradients as they are now and change what the policy says.

        Args:
            losses: observed since the step before; floats or one-element tensors.
            sample_ids: of the data that this step is about.
        """
        if (microbatches := self.target.microbatches) is not None:
            losses = microbatches.tell(self.stats, losses)
            if self.stats.dropped_microbatches:
                self.quiet.disarm()
        if self.quiet.left > 0 and self.quiet.take(losses):
            return
        self.quiet.settle()
        self._prepare()
        self._read(losses)
        if self.step >= self.gradient_probe.next_step:
            self.gradient_probe.take(self.step, self.monitor, self.stats, 1.0 / self.target.gradient_scale)
        if self.probes is not None:
            self.probes.launch(self.step)
            self.probes.fill(self.stats)
        self._judge(sample_ids)
        if self.probes is not None:
            if not self.target.is_skipped and not self.stats.found_inf:
                self.probes.before_step(self.step, self.stats.lr * self.target.lr_factor)
            self.probes.judged(self.stats)
        self.quiet.arm()

    def settle(self) -> None:
        """Take in what the steps so far still wait for, so that whatever is asked of the pipeline is up to date."""
        self.quiet.settle()

    def parameters_changed(self) -> None:
        """Note that parameters or the optimizer's state were replaced."""
        self.quiet.disarm()

    def _prepare(self) -> None:
        """Forget the step before, and read afresh what was replaced since."""
        if self.pace is not None:
            self.pace.begin()
        self.target.begin()
        self.findings, self.records, self.intervening.judged = [], [], []
        if self.monitor.has_new_layout():
            layout.take_new_layout(self)
        self.stats.step = self.step
        if self.start_versions:
            layout.check_for_loaded_weights(self)

    def _judge(self, sample_ids: SampleIds) -> None:
        """Find what is wrong with the step that the stats describe, act on it, and record the step."""
        stats = self.stats
        if not stats.finite or (stats.has_loss and not math.isfinite(stats.loss)):
            has_moved = self.target.is_past and not self.target.was_skipped  # then the step itself may have spoilt them
            if not stats.found_inf:
                stats.bad_state = stats.bad_state or (() if has_moved else self.monitor.nonfinite_parameters())
                self.locating.look(stats)
        self.recorder.facts(stats)
        found, target = self.judgement.judge(stats), self.target
        if found or target.effects:
            self._act(found, sample_ids)
            return
        if self.routine.rules and stats.finite and not stats.found_inf:
            self.routine.apply_alone(target)
            if target.grad_scale is not None and not target.is_past:
                target.grad_scale.put_on()
        self.learn_and_record(0)

    def put_effects_on(self) -> None:
        """Put in force for this step what earlier interventions left."""
        for effect in self.target.effects.values():
            effect.before_step(self.target, self.step)

    def take_effects_off(self) -> None:
        """Undo what was put in force for this step."""
        if self.target.grad_scale is not None:
            self.target.grad_scale.take_off()
        for effect in self.target.effects.values():
            effect.take_off(self.target)

    def lr(self) -> float:
        """Return the learning rate of the first param group."""
        rate = self.target.optimizer.param_groups[0].get("lr", 0.0)
        return rate if rate.__class__ is float else float(rate)

    def _read(self, losses: Sequence[Any]) -> None:
        """Fill the stats of this step."""
        stats = self.stats
        stats.lr = self.lr()
        stats.is_stale = self.watch.is_stale
        inverse_scale = 1.0
        if self.scale.is_used or hasattr(self.target.optimizer, "grad_scale"):
            inverse_scale = self.scale.read(self.target.optimizer, stats)
            self.target.gradient_scale = 1.0 / inverse_scale
            if stats.found_inf:
                aside.record_scaler_skips(self, 1, stats.loss_scale, " at scale")
        if self.pace is None:
            self.monitor.measure(stats, inverse_scale, losses)
        else:
            self.pace.hear(self.pace.say(losses).tolist(), stats)
            self.monitor.measure(stats, inverse_scale, None)
            self.pace.measured()

    def keep_pace(self) -> None:
        """Take part in what the other ranks do at a step that this one does not judge, so that they do not wait."""
        if self.pace is not None:
            self.pace.keep()

    def _act(self, found: list[tuple[Rule, Finding]], sample_ids: SampleIds) -> None:
        """Carry out what the findings and the rules for every step call for."""
        stats, target = self.stats, self.target
        measured = stats.measured()
        flags = 0
        if found:
            flags |= Flag.FINDING
            self.findings = list({id(finding): finding for _, finding in found}.values())
            if target.snapshots is not None:
                target.snapshots.distrust()
            self.records = self.intervening.act(found, sample_ids)
            if any(record.kind == "intervention" for record in self.records):
                flags |= Flag.INTERVENTION
            self.periodic.outcomes_waiting()
        if not target.is_skipped and not stats.found_inf and stats.finite:
            self.routine.apply(target)
            for effect in target.effects.values():
                effect.on_gradients(target, stats.step)
        if not target.is_past:
            self.put_effects_on()
            if target.grad_scale is not None:
                target.grad_scale.put_on()
        if target.is_skipped:
            flags |= Flag.SKIPPED_BY_GUARD
        layout.follow_windows(self, is_within=True)
        stats.put_back(measured)  # remedies noted the norms that they left; what was measured is what is remembered
        self.learn_and_record(flags)

    def learn_and_record(self, flags: int) -> None:
        """Take the step into the rolling statistics if it was sound, and write its row."""
        stats = self.stats
        if stats.found_inf:
            flags |= Flag.SKIPPED_BY_SCALER
        elif stats.finite and self.target.restored is None and not self.target.is_operated:
            self.judgement.learn(stats.levels, stats.loss, stats.has_loss, stats.is_plain)
        elif stats.finite:
            flags |= Flag.REFUSED
        if stats.is_stale:
            flags |= Flag.STALE
        self.recorder.row(stats, self.target.lr_factor, self.target.clip_coef, flags)
        if stats.bad_state or stats.origin is not None:
            stats.bad_state, stats.origin = (), None

    def after_step(self) -> None:
        """Undo what was only for the step, accept its results, and do what is due now and then."""
        target = self.target
        if not self.quiet.is_last:
            self.take_effects_off()
            target.effects = {name: effect for name, effect in target.effects.items() if effect.goes_on(self.step + 1)}
            self.scale.after_step(self.stats)
        self.watch.after_step()
        target.end_step()
        if target.buffers is not None and not target.is_skipped and len(target.buffers):
            target.buffers.accept()
        self.step += 1
        if self.probes is not None and (not self.quiet.is_last or self.step >= self.probes.next_due):
            self.probes.after_step(self.step, is_applied=not target.is_skipped)
        if self.step >= self.periodic.next_due:
            self.quiet.settle()
            self.quiet.disarm()
            self.periodic.run(self.step, self.stats, self.judgement)

    def report(self) -> StepReport:
        """Return what happened at the last step."""
        outcomes = self.intervening.judged
        return StepReport.of(self.step - 1, self.stats, self.target, self.findings, self.records, outcomes)

    def _probe(self) -> None:
        self.monitor.probe(self.stats)
        self.recorder.sampled(self.stats)

    def finish(self) -> None:
        """Write down what still waits for its judgement, and let go of the hooks."""
        try:
            self.settle()
            if self.step and not self.target.is_stopped:
                aside.judge_last_step(self)
            self.periodic.give_up(self.step, self.judgement)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Take the hooks off parameters and modules."""
        self.watch.close()
        self.target.let_go()
        if self.probes is not None:
            self.probes.close()

    def flush(self) -> None:
        """Hand over to the disk what is known of the steps so far."""
        self.quiet.settle()
        self.recorder.flush()

    def read_parameters(self) -> None:
        """Tell the remedies which parameters there are."""
        target = self.target
        target.params, target.table = self.monitor.params, self.monitor.table
        if target.grad_scale is not None:
            target.grad_scale.take_off()
        target.grad_scale = GradScale(target.optimizer) if is_foldable(target.optimizer, target.params) else None
