"""The handles that a remedy may touch, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.contracts import Effect, Unavailable
from gradguard.evidence.norm_notes import NormNotes
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.flow.observed import SampleIds
from gradguard.functional import exact_norm, scale_, scale_each_
from gradguard.model.forward_inputs import ForwardInputs
from gradguard.model.last_call import LastCall
from gradguard.model.variance_watch import VarianceWatch
from gradguard.optimizer.grad_scale import GradScale
from gradguard.optimizer.microbatches import Microbatches
from gradguard.records import Finding
from gradguard.snapshots.buffer_shadow import BufferShadow
from gradguard.snapshots.captures import Captures
from gradguard.snapshots.ring import Snapshots
from gradguard.snapshots.snapshot import Snapshot


SMALLEST_FOLDED = 1e-30  # below it the inverse that the kernels divide by leaves float32


class Target(NormNotes):
    """What is being trained, at one step.

    Args:
        model: the user's model.
        optimizer: the user's optimizer.
        stats: this step's measurements; a remedy that scales gradients writes the new norms into them.

    Attributes:
        params: the P monitored parameters.
        table: their names, shapes and groups.
        gradient_scale: loss scale that is still in the gradients (fused optimizers under GradScaler), else 1.
        grad_scale: lets the optimizer's fused kernels scale the gradients, where they can.
        buffers: the buffers as the last accepted step left them, when a rule needs them.
        snapshots: states to roll back to, when a rule needs them.
        captures: writes what a step can be taken again from, when a rule needs it.
        microbatches: takes back those that are not finite, when a rule needs it and it can be done.
        variances: tells whether this step's batches blew up a running variance, when a rule asks and it can be seen.
        sample_ids: what the user said that this step's data is.
        notes: what is kept, and what cannot be done, for the user to know from the start.
        effects: what earlier interventions left in force, by remedy.
        is_past: the step that remedies act on is over: what had to be done to its gradients was done on the device.
        was_skipped: the device skipped that step.
        is_skipped: a remedy decided that this step must not change anything.
        restored: the snapshot that a remedy put back at this step.
        is_stopped: a remedy decided that training ends here.
        stop_finding: the finding behind `is_stopped`.
        inputs: what the model was given, when a rule needs it.
        last_call: what it was given last, until the step is judged; for one that is not finite.
        is_operated: a remedy changed weights or modules themselves at this step.
        replaced: activation modules that were exchanged in this run, {name: kind of the new one}.
        is_rebaselined: a remedy asked that the rolling statistics start afresh.
        lr_factor: the guard's factor on the learning rate of the first param group at this step.
        clip_coef: product of the factors by which the gradients as a whole were scaled at this step.
        notify: the user's function, or None.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, stats: StepStats) -> None:
        super().__init__(stats)
        self.model = model
        self.optimizer = optimizer
        self.params: list[Tensor] = []
        self.table = ParameterTable([], [], [], [])
        self.gradient_scale = 1.0
        self.grad_scale: GradScale | None = None
        self.buffers: BufferShadow | None = None
        self.snapshots: Snapshots | None = None
        self.captures: Captures | None = None
        self.microbatches: Microbatches | None = None
        self.variances: VarianceWatch | None = None
        self.sample_ids: SampleIds = ()
        self.notes: list[str] = []
        self.effects: dict[str, Effect] = {}
        self.is_past = False
        self.was_skipped = False
        self.is_skipped = False
        self.is_stopped = False
        self.stop_finding: Finding | None = None
        self.restored: Snapshot | None = None
        self.is_rebaselined = False
        self.inputs: ForwardInputs | None = None
        self.last_call: LastCall | None = None
        self.is_operated = False
        self.replaced: dict[str, str] = {}
        self.clip_coef = 1.0
        self.lr_factor = 1.0
        self.notify: Callable[[Finding], Any] | None = None

    def end_step(self) -> None:
        """Let go of what was kept for this step alone, and take in what it left."""
        if self.variances is not None and not self.is_skipped:
            self.variances.accept()
        if self.inputs is not None:
            self.inputs.forget()
        if self.microbatches is not None:
            self.microbatches.end_step()

    def end_judgement(self) -> None:
        """Let go of the batch: what there was to be learnt of it has been."""
        if self.last_call is not None:
            self.last_call.forget()

    def let_go(self) -> None:
        """Take the hooks off that remedies and looks needed."""
        if self.last_call is not None:
            self.last_call.close()
            self.last_call = None
        if self.inputs is not None:
            self.inputs.close()
            self.inputs = None
        if self.microbatches is not None:
            self.microbatches.close()

    def begin(self) -> None:
        """Forget what remedies did at the step before, and look at what the forward passes of this one did."""
        self.is_skipped = False
        self.is_stopped = False
        self.restored = None
        self.is_rebaselined = False
        self.is_operated = False
        self.clip_coef = 1.0
        self.lr_factor = 1.0
        self.gradient_scale = 1.0
        if self.grad_scale is not None:
            self.grad_scale.take_off()
        if self.variances is not None:
            self.variances.look(self.stats)

    def grads(self, rows: Sequence[int]) -> list[Tensor]:
        """Return the gradients of these rows, to be read and written; rows without one are left out."""
        if self.is_past:
            raise Unavailable("the gradients of that step are gone: with `sync: deferred` it was judged one step later")
        if self.grad_scale is not None and self.grad_scale.factor != 1.0:
            factor, self.grad_scale.factor = self.grad_scale.factor, 1.0
            scale_(self.grads(self.rows(None)), factor)
        return [grad for i in rows if (grad := self.params[i].grad) is not None]

    def drop_step(self) -> int:
        """Make torch's step a no-op and undo what the forward did to buffers; return how many buffers that were."""
        self.is_skipped = True
        if self.is_past:
            return 0
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                param.grad = None
        if self.grad_scale is not None:
            self.grad_scale.factor = 1.0
        return self.buffers.restore() if self.buffers is not None else 0

    def go_back(self, restore: Callable[[int], Snapshot | None]) -> Snapshot | None:
        """Put a snapshot back and drop the step, whose gradients are of other weights; return the snapshot.

        Args:
            restore: given the step, puts one back; None says that there is none, and nothing is changed.
        """
        for effect in self.effects.values():
            effect.take_off(self)  # so that learning rates that are put back stay as they are
        self.restored = restore(self.stats.step)
        if self.restored is not None:
            if self.buffers is not None:
                self.buffers.accept()
            self.drop_step()
        return self.restored

    def refuse_if_stopped(self) -> None:
        """Raise `Unavailable` if training ends at this step: its weights are left as they are."""
        if self.is_stopped:
            raise Unavailable("training stops at this step: its weights are left as they are")

    def operate(self) -> None:
        """Begin surgery: this step's gradients are of what was there before, so they are dropped."""
        self.drop_step()
        self.is_operated = True

    def multiply_all(self, factor: float) -> None:
        """Multiply every gradient by one factor, in the optimizer's own kernels where they can."""
        if self.is_past:
            pass
        elif not self._fold(factor):
            scale_(self.grads(self.rows(None)), factor)
        self.clip_coef *= factor

    def scale_all(self, factor: float) -> None:
        """Multiply every gradient by one factor, and note the norms that it leaves."""
        self.multiply_all(factor)
        self.note_all(factor)

    def _fold(self, factor: float) -> bool:
        """Leave a factor to the optimizer's kernels if they can take it; return whether they do."""
        scale = self.grad_scale
        if scale is None or not scale.is_usable() or not SMALLEST_FOLDED < scale.factor * factor < 1 / SMALLEST_FOLDED:
            return False
        scale.factor *= factor
        return True

    def scale(self, factors: Mapping[int, float]) -> None:
        """Multiply the gradients of some rows, {row: factor}, and note it."""
        scale_each_(self.grads(list(factors)), list(factors.values()))
        self.note({row: self.stats.norm(row) * factor for row, factor in factors.items()})

    def measure_again(self, rows: Sequence[int]) -> None:
        """Measure the norms of these rows afresh, after their entries were changed."""
        for row in rows:
            grad = self.params[row].grad
            if grad is None:
                continue
            norm, num_nan, num_inf = exact_norm(grad)
            self.stats.nonfinite.pop(row, None)
            if num_nan or num_inf:
                self.stats.nonfinite[row] = (num_nan, num_inf)
            self._set_norm(row, math.nan if num_nan else math.inf if num_inf else norm / self.gradient_scale)
        self.stats.finite = not self.stats.nonfinite
        self._sum_up()
