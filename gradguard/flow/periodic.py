"""What is due now and then, not at every step: probes, snapshots, outcomes."""

from __future__ import annotations

from collections.abc import Callable

from gradguard.evidence.stats import StepStats
from gradguard.flow.intervention import Intervening
from gradguard.flow.judgement import Judgement
from gradguard.flow.target import Target
from gradguard.policy.schema import Policy
from gradguard.records import Event
from gradguard.snapshots.ring import NOT_FINITE, Snapshots


class Periodic:
    """Runs what is due; a step at which nothing is due costs one comparison with `next_due`.

    Args:
        policy: gives the strides.
        probe: takes a probe.
        target: holds the snapshots.
        intervening: has the judgements that wait, and learns from them.

    Attributes:
        next_probe: steps after which the next probe is taken.
        next_due: steps after which anything is due.
    """

    def __init__(self, policy: Policy, probe: Callable[[], None], target: Target, intervening: Intervening) -> None:
        self._policy = policy
        self._probe = probe
        self._target = target
        self._intervening = intervening
        self._outcomes = intervening.outcomes
        self.next_probe = 1
        self.next_due = 0
        self._is_refused = False  # the last snapshot that was due could not be taken

    def probe_at(self, step: int) -> None:
        """Take the next probe after `step` steps."""
        self.next_probe = self.next_due = step

    def outcomes_waiting(self) -> None:
        """Note that an intervention was added to those that wait for their judgement."""
        self.next_due = min(self.next_due, self._outcomes.next_due)

    def is_more_than_probe_due(self, step: int) -> bool:
        """Return whether a snapshot or a judgement is due after `step` steps."""
        snapshots = self._target.snapshots
        is_snapshot_due = snapshots is not None and step >= snapshots.next_due(step - 1)
        return is_snapshot_due or step >= self._outcomes.next_due

    def run(self, step: int, stats: StepStats, judgement: Judgement) -> None:
        """Do what is due after `step` steps."""
        if step >= self.next_probe:
            # The step after it takes the statistics of gradients: no step bears the cost of both.
            self.next_probe = (step // self._policy.monitor.probe_every + 1) * self._policy.monitor.probe_every
            self._probe()
        snapshots = self._target.snapshots
        if snapshots is not None:
            snapshots.confirm(step)
            if step >= snapshots.next_step and not self._target.is_skipped and not stats.bad_state:
                self._take_snapshot(snapshots, step, judgement)
        if step >= self._outcomes.next_due:
            losses = list(judgement.losses[self._policy.horizon].values)
            self._intervening.take(self._outcomes.collect(step, losses, judgement.num_losses))
        self.next_due = min(self.next_probe, self._outcomes.next_due)
        if snapshots is not None:
            self.next_due = min(self.next_due, snapshots.next_due(step))

    def _take_snapshot(self, snapshots: Snapshots, step: int, judgement: Judgement) -> None:
        """Save the present state; want of memory, of a disk or of a companion is told once, a bad state elsewhere."""
        snapshots.take(step, judgement.state_dict())
        is_refused = bool(snapshots.refusal) and not snapshots.refusal.endswith(NOT_FINITE)
        if is_refused and not self._is_refused:
            message = f"no state to roll back to was saved at step {step}: {snapshots.refusal}"
            self._intervening.recorder.write(Event(step=step, event="snapshot_refused", message=message))
        self._is_refused = is_refused

    def give_up(self, step: int, judgement: Judgement) -> None:
        """Write down that the run ends before the judgements that still wait."""
        losses = list(judgement.losses[self._policy.horizon].values)
        stopped_by = self._target.stop_finding if self._target.is_stopped else None
        self._intervening.take(self._outcomes.give_up(step, losses, judgement.num_losses, stopped_by))
