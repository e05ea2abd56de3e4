"""Guard: what `attach` returns. A fault of its own never reaches the training.

for inputs, targets in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    guard.observe(loss)      # the loss of this step
    optimizer.step()         # <- before: measure, diagnose, decide, act, record;  after: accept, probe, snapshot
    scheduler.step()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from loguru import logger
from torch import Tensor

from gradguard.errors import TrainingStopped, UsageError
from gradguard.flow import aside, giving_up, layout, letting_go, resume
from gradguard.flow.deferred import DeferredPipeline
from gradguard.flow.observed import Observed, checked_loss
from gradguard.flow.pipeline import Pipeline
from gradguard.flow.step_report import StepReport
from gradguard.gradients.monitor import Monitor
from gradguard.optimizer.attachment import Attachment
from gradguard.optimizer.inner_evaluations import InnerEvaluations
from gradguard.policy.schema import Policy
from gradguard.printable import printable
from gradguard.record.directory import RunDirectory
from gradguard.record.recorder import Recorder
from gradguard.records import AnyRecord, Event, Finding
from gradguard.snapshots.companions import Companions
from gradguard.snapshots.ring import Snapshots


STATE_VERSION = 2


class Guard:
    """Watches over one optimizer's steps; made by `gradguard.attach`.

    Args:
        monitor: measures the gradients of the user's optimizer.
        policy: what is looked for and what is done about it.
        directory: where the record goes, or None to keep it in memory.
        scaler: the GradScaler in use, or None.
        notify: called with the finding by the remedy `notify`.
        companions: what is saved and restored beside model and optimizer.
    """

    def __init__(
        self,
        monitor: Monitor,
        policy: Policy,
        *,
        directory: RunDirectory | None = None,
        scaler: torch.amp.GradScaler | None = None,
        notify: Callable[[Finding], Any] | None = None,
        companions: Companions | None = None,
    ) -> None:
        self.policy = policy
        self.directory = directory
        self._told: set[str] = set()
        self._is_off = self._is_closed = False
        self._observed = Observed()
        self._is_loss_read = policy.monitor.sync == "immediate"
        self._report: StepReport | None = None
        sinks = [sink.model_copy(deep=True) for sink in policy.sinks]
        fault = letting_go.weakly(self._fault)
        self._recorder = Recorder(directory, sinks, fault)
        kind = DeferredPipeline if policy.monitor.sync == "deferred" else Pipeline
        self._pipeline = kind(monitor, policy, scaler, self._recorder, fault, companions)
        self._pipeline.target.notify = notify
        self._inner = InnerEvaluations(self._pipeline) if InnerEvaluations.is_needed(monitor.optimizer) else None
        self._attachment: Attachment | None = None
        try:
            layout.start(self._pipeline)
            self._attachment = Attachment(monitor.optimizer, self)
        except BaseException:
            self._pipeline.let_go()
            raise
        self._finalizer = weakref.finalize(self, letting_go.flush, weakref.ref(self._pipeline), self._recorder)

    def observe(self, loss: Tensor | float, sample_ids: Iterable[int | str] | None = None) -> None:
        """Hand in the loss of the step that comes next; several of one step (micro-batches) are averaged.

        Args:
            loss: one element, a tensor or a number; NaN and Inf are welcome. It is not scaled by a GradScaler.
            sample_ids: what the batch is made of; written into the record of an intervention at this step.

        Raises:
            UsageError: not a number, or a tensor with several elements.
        """
        given = checked_loss(loss, self._is_loss_read)
        if self._is_off:
            return
        if self._pipeline.scale.is_used:
            self._notice_scaler()
        watch = self._pipeline.watch
        self._observed.add(watch.window + (not watch.is_pending), given, sample_ids, is_early=not watch.is_pending)

    @property
    def last(self) -> StepReport:
        """What happened at the last step; `last.skipped` tells a caller to hold its scheduler.

        With `sync: deferred`, asking waits for the device. Ask before the next forward pass: what is learned may
        be a rollback, which replaces the weights.
        """
        if not self._is_off:
            try:
                self._pipeline.settle()
            except Exception as error:
                self._give_up(error)
        scale = self._pipeline.scale
        if scale.is_used and scale.has_unseen_skip() and not self._is_off:
            return StepReport.of_scaler_skip(self._pipeline.step)
        if self._report is None:
            self._report = self._pipeline.report()
        return self._report

    @property
    def records(self) -> list[AnyRecord]:
        """The last 1000 records, oldest first; all of them are in the run directory."""
        return list(self._recorder.kept)

    @property
    def run_dir(self) -> str | None:
        """Where the record is written; None when it is kept in memory only."""
        return str(self.directory.path) if self.directory is not None else None

    @property
    def step(self) -> int:
        """Optimizer steps so far, applied or not."""
        return self._pipeline.step

    @property
    def snapshots(self) -> Snapshots | None:
        """The states that a rollback may use; None when the policy does not roll back."""
        return self._pipeline.target.snapshots

    @property
    def reasons_to_wait(self) -> tuple[str, ...]:
        """Why the host waits for the device at every step although the policy says `sync: deferred`."""
        return tuple(self._pipeline.reasons_to_wait)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the guard cannot do although a rule asks for it, and what the policy makes it keep."""
        probes = self._pipeline.probes
        return (*(probes.notes if probes is not None else ()), *self._pipeline.target.notes)

    def announce(self, event: Event) -> None:
        """Put an event into the record."""
        self._recorder.write(event.model_copy(update={"step": self.step}))

    def before_closure(self) -> None:
        """See `StepListener`."""
        if self._is_off:
            return
        try:
            self._pipeline.put_effects_on()
            if self._inner is not None:
                self._inner.begin()
        except Exception as error:
            self._give_up(error)

    def before_step(self, loss: Any) -> None:
        """See `StepListener`."""
        if self._is_off:
            self._pipeline.keep_pace()
            return
        losses, sample_ids = self._observed.of_window(self._pipeline.watch.window)
        if loss is not None and not losses:
            losses.append(loss)
        try:
            if self._pipeline.scale.is_used:
                aside.notice_scaler(self._pipeline, (), is_every_step_observed=False)
            self._pipeline.before_step(losses, sample_ids)
            self._pipeline.target.end_judgement()
        except Exception as error:
            self._pipeline.keep_pace()
            self._give_up(error)
        self._report = None
        self._observed.clear()
        if self._pipeline.target.is_stopped:
            self._stop_if_asked()

    def abandon_step(self) -> None:
        """See `StepListener`."""
        self._pipeline.take_effects_off()

    def after_step(self) -> None:
        """See `StepListener`."""
        if self._is_off:
            return
        try:
            if self._inner is not None:
                self._inner.end()
            self._pipeline.after_step()
        except Exception as error:
            self._give_up(error)
        if self._pipeline.target.is_stopped:
            self._stop_if_asked()

    def _notice_scaler(self) -> None:
        """What was observed for a step that the scaler skipped since does not belong to the next one."""
        try:
            if aside.notice_scaler(self._pipeline, self._observed.losses(), is_every_step_observed=True):
                self._observed.clear()
                self._report = None
        except Exception as error:
            self._give_up(error)
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if not self._pipeline.target.is_stopped or self._is_closed:
            return
        finding, step = self._pipeline.target.stop_finding, self._pipeline.step
        why, kept = giving_up.reason_to_stop(self._pipeline), giving_up.keep_last_good(self._pipeline, self.directory)
        self.close(status="stopped")
        words = giving_up.last_words(step, why, finding, self._pipeline.intervening.tally, kept, self.run_dir)
        raise TrainingStopped(printable(words), finding)

    def _fault(self, what: str, error: Exception) -> None:
        """Record and tell a fault of the guard's own, once for each part that fails."""
        if what in self._told:
            return
        self._told.add(what)
        if self.policy.on_internal_error == "raise":
            raise error
        logger.error("{}", printable(f"gradguard: {what} failed ({error!r}); training goes on without it"))
        step = self._pipeline.step if hasattr(self, "_pipeline") else 0
        self._recorder.write(
            Event(step=step, event="internal_error", message=f"{what} failed: {error!r}", data={"part": what})
        )

    def _give_up(self, error: Exception) -> None:
        """Switch the guard off after a fault that it cannot isolate; the training goes on unguarded."""
        self._is_off = True
        self._pipeline.take_effects_off()
        self._pipeline.let_go()
        self._fault("the guard itself (now off)", error)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to decide exactly as an uninterrupted one; safe for weights_only loading."""
        return {"version": STATE_VERSION, **resume.dump(self._pipeline)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; load the model and the optimizer first.

        Raises:
            UsageError: the state is of another version or of other parameters; nothing was changed.
        """
        version = state.get("version") if isinstance(state, dict) else type(state).__name__
        if version != STATE_VERSION:
            raise UsageError(f"expected what state_dict() of version {STATE_VERSION} returned, got {version!r}")
        resume.load(self._pipeline, state)
        self._recorder.write(
            Event(step=self.step, event="resumed", message=f"resumed at step {self.step} from a saved state")
        )

    def close(self, status: Literal["closed", "stopped", "failed"] = "closed") -> None:
        """Take the hooks off and finish the record; closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_off = True
        if self._attachment is not None:
            self._attachment.remove()
        try:
            self._pipeline.take_effects_off()
            self._pipeline.finish()
        except Exception as error:
            self._fault("the last look at the run", error)
        steps = self._pipeline.step
        message = f"{status} after {steps:,} step{'s' * (steps != 1)}" if steps else f"{status}: no step was taken"
        self._recorder.write(Event(step=max(0, steps - 1), event=status, message=message))
        self._recorder.finish(status)
        self._finalizer.detach()

    def __del__(self) -> None:
        if getattr(self, "_attachment", None) is not None and not self._is_closed:
            letting_go.leave(self._pipeline)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "a guard cannot be copied or pickled: it belongs to one optimizer and one record. Copy the model and the "
            "optimizer, save guard.state_dict(), and attach a new guard to the copies"
        )

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close(status="closed" if kind is None else "failed")
