"""`sync: deferred`: the device skips and clips by thresholds known before, and the host learns one step later.

before_step t:  numbers of step t-1 -> judge, act, record (late);  plan for t -> device: norms, verdict -> on their way
after_step t:   buffers accepted or put back on the device

A step that follows trouble, or about which the device cannot decide, is judged at once, as without `deferred`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradguard.evidence.stats import ABSENT, StepStats
from gradguard.flow.exchange import mean_over_ranks
from gradguard.flow.foresight import Foresight
from gradguard.flow.mean_loss import mean_loss
from gradguard.flow.observed import SampleIds
from gradguard.flow.pipeline import Pipeline
from gradguard.gradients.device_verdict import DeviceVerdict, take_verdict
from gradguard.gradients.transfer import Transfer
from gradguard.probes.gradient_probe import Read
from gradguard.record.statistics import Flag
from gradguard.records import Event
from gradguard.snapshots.buffer_shadow import Place


WATCHFUL = 10  # steps after a finding that are judged at once


@dataclass
class Underway:
    """A step that the device has decided about and the host knows nothing of yet.

    `places` are those of buffers that the device cannot put back.
    """

    step: int
    lr: float
    is_stale: bool
    rows: list[int]
    sample_ids: SampleIds
    verdict: DeviceVerdict
    transfer: Transfer
    places: list[Place] = field(default_factory=list)


class DeferredPipeline(Pipeline):
    """A pipeline whose healthy steps never wait for the device; see `Pipeline` for the arguments."""

    def _set_up(self) -> None:
        """See `Pipeline._set_up`."""
        self.monitor.packs_loss = True
        if self.pace is not None:
            self.pace.num_owed = 2
        self._foresight = Foresight(self.policy)
        self._needs_device = self._foresight.needs_device()
        self._underway: Underway | None = None
        self._unread_probe: Callable[[StepStats], None] | None = None
        self._unread_statistics: Read | None = None
        self._first_deferred = 1  # the first step makes the optimizer's state, which a skipped kernel would leave unset
        self._must_drop = False
        self.reasons_to_wait = tuple(self._reasons_to_wait())

    def _reasons_to_wait(self) -> list[str]:
        """Return why no step can be left to the device."""
        reasons = self._foresight.reasons_to_wait(self._stats_to_come())
        if not self._has_device():
            reasons.append(
                "the optimizer cannot skip or clip on the device: use SGD, Adam, AdamW or Adagrad with fused=True"
            )
        if self.scale.is_used:
            reasons.append("GradScaler reads its scale on the host")
        if any(not isinstance(group.get("lr", 0.0), (int, float)) for group in self.target.optimizer.param_groups):
            reasons.append("the learning rate is a tensor")
        return reasons

    def _has_device(self) -> bool:
        """Return whether the optimizer's kernels can do what the policy may ask of them."""
        scale = self.target.grad_scale
        return not self._needs_device or (scale is not None and scale.is_usable())

    def _stats_to_come(self) -> StepStats:
        """Return the stats with what is known about the step that comes."""
        stats = self.stats
        stats.step = self.step
        self.judgement.lend(stats)
        return stats

    def parameters_changed(self) -> None:
        """See `Pipeline.parameters_changed`: the step to come makes new state, as the first one did."""
        self._underway = self._unread_probe = self._unread_statistics = None
        self._first_deferred = self.step + 1
        self.reasons_to_wait = tuple(self._reasons_to_wait())

    def before_step(self, losses: Sequence[Any], sample_ids: SampleIds = ()) -> None:
        """See `Pipeline.before_step`."""
        self._settle(has_gradients=True)
        if self.target.is_stopped:
            return
        if self._must_drop:
            self._drop(losses)
        elif self._is_calm(losses):
            self._leave_to_device(losses, sample_ids)
        else:
            super().before_step(losses, sample_ids)
            if self.findings:
                self._first_deferred = self.step + 1 + WATCHFUL

    def _is_calm(self, losses: Sequence[Any]) -> bool:
        """Return whether nothing is known that the host should look at before the step."""
        if self.reasons_to_wait or self.step < self._first_deferred or self.start_versions:
            return False
        if self.stats.bad_state or self.target.effects or self.monitor.has_new_layout():
            return False
        if not self._has_device():
            return False
        if hasattr(self.target.optimizer, "grad_scale"):  # someone scales the loss
            return False
        if not self.monitor.can_launch():
            return False
        # Ranks must take the same way, so a loss that only this one has seen is no reason to leave it.
        return self.pace is not None or all([loss.__class__ is Tensor or math.isfinite(loss) for loss in losses])

    def _drop(self, losses: Sequence[Any]) -> None:
        """Drop gradients that belong to weights which a rollback has replaced since."""
        self._must_drop = False
        self._prepare()
        stats = self.stats
        self.target.drop_step()
        stats.levels.fill(ABSENT)
        stats.has_loss, stats.loss = bool(losses), mean_loss(losses) if losses else math.nan
        stats.global_norm, stats.finite = 0.0, False
        self.learn_and_record(Flag.SKIPPED_BY_GUARD | Flag.UNJUDGED)
        message = "this step's gradients were of the weights before the guard replaced them: it was not taken"
        self.recorder.write(Event(step=self.step, event="step_dropped", message=message))

    def _leave_to_device(self, losses: Sequence[Any], sample_ids: SampleIds) -> None:
        """Plan the step, let the device measure and decide, and send the numbers on their way."""
        self._prepare()
        said = self.pace.say(losses) if self.pace is not None else None
        rows, norms = self.monitor.launch()
        if self.pace is not None:
            self.pace.measured()
        if self.step >= self.gradient_probe.next_step:
            self._unread_statistics = self.gradient_probe.launch(self.step, self.monitor, 1.0)
        if self.probes is not None:
            self.probes.launch(self.step)
            self.probes.before_step(self.step, float(self.target.optimizer.param_groups[0].get("lr", 0.0)))
        loss = mean_over_ranks(said) if said is not None else _device_loss(losses, norms)
        stats = self._stats_to_come()
        stats.lr = float(self.target.optimizer.param_groups[0].get("lr", 0.0))
        plan = self._foresight.plan(self.judgement, self.intervening.histories, stats)
        verdict = take_verdict(plan, norms, loss)
        if (scale := self.target.grad_scale) is not None:
            if verdict.is_skipped is not None:
                scale.set("found_inf", verdict.is_skipped.float())
            if verdict.factor is not None:
                scale.set("grad_scale", verdict.factor.reciprocal().float())
        parts = {"norms": norms, "is_skipped": verdict.is_skipped, "factor": verdict.factor}
        parts |= {"loss": loss} if said is None else {"said": said}
        self._underway = Underway(
            step=self.step,
            lr=stats.lr,
            is_stale=self.watch.is_stale,
            rows=rows,
            sample_ids=sample_ids,
            verdict=verdict,
            transfer=Transfer({name: part for name, part in parts.items() if part is not None}),
        )

    def after_step(self) -> None:
        """See `Pipeline.after_step`."""
        if self._underway is None:
            super().after_step()
            return
        self.take_effects_off()
        self.watch.after_step()
        if self.target.buffers is not None and len(self.target.buffers):
            self._underway.places = self.target.buffers.accept(unless=self._underway.verdict.is_skipped)
        self.step += 1
        if self.probes is not None:
            self.probes.after_step(self.step, is_applied=True)
        if self.step >= self.periodic.next_due:
            if self.periodic.is_more_than_probe_due(self.step):
                self._settle(has_gradients=False)
            self.periodic.run(self.step, self.stats, self.judgement)

    def _probe(self) -> None:
        self._unread_probe = self.monitor.launch_probe()

    def settle(self) -> None:
        """See `Pipeline.settle`; waits for the device."""
        self._settle(has_gradients=self.watch.is_pending)

    def _settle(self, has_gradients: bool) -> None:
        """Take in what is under way; gradients that are there already would belong to the weights before a rollback."""
        underway, self._underway = self._underway, None
        if underway is not None:
            self._judge_late(underway)
            target = self.target
            is_restored = target.restored is not None or (target.is_rebaselined and target.is_skipped)
            is_restored |= target.is_operated
            self._must_drop = has_gradients and is_restored
        read, self._unread_probe = self._unread_probe, None
        if read is not None and not self.target.is_stopped:
            read(self.stats)
            self.recorder.sampled(self.stats)

    def _judge_late(self, underway: Underway) -> None:
        """Judge a step from the numbers that have arrived, and write down what the device did."""
        arrived = underway.transfer.read()
        stats, target = self.stats, self.target
        stats.step, stats.lr, stats.is_stale = underway.step, underway.lr, underway.is_stale
        if self.pace is not None:
            self.pace.hear(arrived["said"].reshape(-1, 3).tolist(), stats)
        else:
            stats.has_loss = "loss" in arrived
            stats.loss = float(arrived["loss"][0]) if stats.has_loss else math.nan
        self.monitor.read_late(stats, underway.rows, arrived["norms"])
        statistics, self._unread_statistics = self._unread_statistics, None
        if statistics is not None:
            statistics(stats, is_late=True)
        target.begin()
        target.is_past = stats.is_late = True
        target.was_skipped = bool(arrived["is_skipped"][0]) if "is_skipped" in arrived else False
        self.findings, self.records = [], []
        if target.was_skipped and target.buffers is not None:
            target.buffers.restore_at(underway.places)
        is_finite = stats.finite and not (stats.has_loss and not math.isfinite(stats.loss))
        if self.probes is not None:
            if target.was_skipped:
                self.probes.drop(underway.step)
            self.probes.fill(stats, before=underway.step)
        self._judge(underway.sample_ids)
        if self.probes is not None:
            self.probes.judged(stats)
        factor = float(arrived["factor"][0]) if "factor" in arrived else 1.0
        is_same_factor = target.was_skipped or target.is_skipped or math.isclose(factor, target.clip_coef, rel_tol=1e-3)
        if target.was_skipped > target.is_skipped or not is_same_factor:
            self._tell_of_disagreement(underway.step, factor)
        if self.findings or not is_finite:
            self._first_deferred = self.step + WATCHFUL
        stats.is_late = target.is_past = False

    def _tell_of_disagreement(self, step: int, factor: float) -> None:
        did = "skipped the step" if self.target.was_skipped else f"multiplied the gradients by {factor:.6g}"
        message = f"the device {did}, by a threshold that the host finds was not reached"
        data = {"device_skipped": int(self.target.was_skipped), "device_factor": factor}
        self.recorder.write(Event(step=step, event="device_disagrees", message=message, data=data))


def _device_loss(losses: Sequence[Any], norms: Tensor) -> Tensor | None:
    """Return the mean of the losses on the device of the norms, () float64; None when there are none."""
    if not losses:
        return None
    wide = torch.float32 if norms.device.type == "mps" else torch.float64
    mean = torch.zeros((), dtype=wide, device=norms.device)
    for loss in losses:
        is_there = isinstance(loss, Tensor) and loss.device == norms.device
        mean += (loss.reshape(()).to(wide) if is_there else float(loss)) / len(losses)
    return mean
