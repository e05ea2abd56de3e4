"""The probes that a policy's diagnoses read: when they are due, and how their numbers get into the step's stats.

forward ... backward -> before judging: `fill` -> judged -> `before_step` -> torch's step -> `after_step`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradguard.evidence.probe_stats import Activations
from gradguard.evidence.stats import StepStats
from gradguard.flow.exchange import Exchange
from gradguard.gradients.monitor import Monitor
from gradguard.policy.schema import Policy
from gradguard.probes.activation_probe import MAX_PASSES, ActivationProbe
from gradguard.probes.update_probe import UpdateProbe
from gradguard.record.recorder import Recorder
from gradguard.records import Event


BLIND = (
    "no forward pass of the model was seen in training mode, so nothing is known of its activations: it is compiled, "
    "in eval mode, or called through another object than the model that was attached"
)


class Probes:
    """Runs the probes of one guard; a probe that fails is switched off and the guard goes on.

    Args:
        policy: its rules say what is read, its `monitor` how often.
        monitor: gives the model and the parameters.
        recorder: takes what was seen.
        on_fault: called with (what failed, error).

    Attributes:
        notes: what is not probed although a rule reads it, and why, one sentence each.
    """

    def __init__(
        self, policy: Policy, monitor: Monitor, recorder: Recorder, on_fault: Callable[[str, Exception], None]
    ) -> None:
        self._every = policy.monitor.probe_every
        self._recorder = recorder
        self._on_fault = on_fault
        self._activations: ActivationProbe | None = None
        self._updates: UpdateProbe | None = None
        self._read_activations: Callable[[], Activations] | None = None
        self._next_start = 0
        self._next_updates = self._every + 1  # just after the weights' norms were sampled
        self._num_steps = 0  # since the probe of activations began
        self._last_launch = -1
        self._is_blindness_told = False
        self.notes: list[str] = []
        reads = policy.reads()
        if "activations" in reads:
            if Exchange.is_needed():
                self.notes.append("activations are not probed: each of several ranks would see others and judge apart")
            else:
                keeps_dead = "dead_units" in policy.needs()
                self._activations = ActivationProbe(monitor.model, on_fault, keeps_dead)
        if "updates" in reads:
            if monitor.is_sharded:
                self.notes.append("updates are not probed: each rank would see its own part of sharded parameters")
            else:
                self._updates = UpdateProbe(monitor, policy.monitor.updates == "every_step")

    @classmethod
    def of(
        cls, policy: Policy, monitor: Monitor, recorder: Recorder, on_fault: Callable[[str, Exception], None]
    ) -> Probes | None:
        """Return the probes that a policy needs, None when it needs none."""
        return cls(policy, monitor, recorder, on_fault) if policy.reads() else None

    @property
    def next_due(self) -> int:
        """Step with which the next probe begins."""
        dues = [
            due for probe, due in ((self._activations, self._next_start), (self._updates, self._next_updates)) if probe
        ]
        return min(dues, default=1 << 62)

    @property
    def is_looking(self) -> bool:
        """Whether forward passes are looked at."""
        return self._activations is not None and self._activations.is_on

    def is_waited_for(self) -> bool:
        """Return whether the next step has numbers to be judged, or is one whose updates are looked at."""
        is_read = self._read_activations is not None
        return is_read or (self._updates is not None and self._updates.is_under_way())

    def pass_by(self, lr: float) -> None:
        """Note a step with which nothing was under way."""
        if self._updates is not None:
            self._updates.note_rate(lr)

    def start(self, step: int) -> None:
        """Put hooks on the model if a probe is due with the forward passes of this step."""
        probe = self._activations
        if probe is not None and not probe.is_on and step >= self._next_start and self._read_activations is None:
            self._next_start = (step // self._every + 1) * self._every
            self._num_steps = 0
            probe.begin()

    def layout_changed(self) -> None:
        """The optimizer has other parameters now."""
        if self._updates is not None:
            self._isolate("update", self._updates.read_layout)

    def start_over(self) -> None:
        """What was seen so far is of another model than there is now."""
        self._read_activations = None
        self._next_start = 0
        if self._activations is not None:
            self._activations.start_over()
        self.layout_changed()

    def launch(self, step: int) -> bool:
        """End the probe of activations if it has what it needs; nobody waits for its numbers yet.

        Returns:
            Whether there are numbers to be judged.
        """
        probe = self._activations
        if probe is None or not probe.is_on or step == self._last_launch:
            return self._read_activations is not None
        self._last_launch = step
        self._num_steps += 1
        if probe.is_complete() or self._num_steps >= MAX_PASSES:
            self._isolate("activation", self._launch)
        else:
            self._isolate("activation", probe.step_taken)
        return self._read_activations is not None

    def _launch(self) -> None:
        if self._activations is not None:
            self._read_activations = self._activations.launch()

    def fill(self, stats: StepStats, before: int | None = None) -> None:
        """Put what is new into the stats of the step that is about to be judged, and into the record.

        Args:
            stats: of the step.
            before: updates of this step and later ones have their turn later; None for those of all steps so far.
        """
        stats.activations = stats.updates = None
        if self._read_activations is not None:
            self._isolate("activation", lambda: self._fill_activations(stats))
        if self._updates is not None and self._updates.has_news():
            self._isolate("update", lambda: self._fill_updates(stats, before))

    def _fill_activations(self, stats: StepStats) -> None:
        read, self._read_activations = self._read_activations, None
        if read is not None:
            stats.activations = read()
            self._recorder.probe(stats.step, stats.activations)
            if not stats.activations.num_passes and not self._is_blindness_told:
                self._is_blindness_told = True
                self._recorder.write(Event(step=stats.step, event="unseen", message=BLIND), durable=False)

    def _fill_updates(self, stats: StepStats, before: int | None) -> None:
        if self._updates is not None and (updates := self._updates.collect(stats.weight_norms, before)) is not None:
            stats.updates = updates
            self._recorder.probe(stats.step, updates)

    def judged(self, stats: StepStats) -> None:
        """Take the numbers out of the stats again, and learn what the step that was judged tells."""
        stats.activations = stats.updates = None
        if self._updates is not None:
            self._updates.note(stats)

    def drop(self, step: int) -> None:
        """The device skipped a step: its updates are none."""
        if self._updates is not None:
            self._updates.drop(step)

    def before_step(self, step: int, lr: float) -> None:
        """Torch's step comes next; `lr` is the first param group's, with the guard's factor."""
        updates = self._updates
        if updates is None:
            return
        if updates.is_under_way():
            self._isolate("update", lambda: updates.before_step(step, lr))
        else:
            updates.note_rate(lr)

    def after_step(self, step: int, is_applied: bool) -> None:
        """Torch's step is done; `step` is the one to come."""
        if self._updates is not None:
            updates = self._updates
            if updates.is_under_way():
                self._isolate("update", lambda: updates.after_step(is_applied))
            if step >= self._next_updates:
                self._next_updates = step + self._every
                updates.begin()
        self.start(step)

    def close(self) -> None:
        """Take the hooks off."""
        if self._activations is not None:
            self._activations.close()

    def _isolate(self, which: str, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:
            if which == "update":
                self._updates = None
            elif self._activations is not None:
                self._activations.close()
                self._activations = self._read_activations = None
            self._on_fault(f"the {which} probe (now off)", error)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to probe at the same steps and see the same."""
        return {
            "next_start": self._next_start,
            "next_updates": self._next_updates,
            "num_steps": self._num_steps,
            "is_blindness_told": self._is_blindness_told,
            "activations": None if self._activations is None else self._activations.state_dict(),
            "updates": None if self._updates is None else self._updates.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._next_updates = state["next_updates"]
        self._next_start, self._num_steps = state["next_start"], state["num_steps"]
        self._is_blindness_told = state.get("is_blindness_told", False)
        self._last_launch = -1
        self._read_activations = None
        if self._activations is not None and state["activations"] is not None:
            self._activations.load_state_dict(state["activations"])
        if self._updates is not None and state["updates"] is not None:
            self._updates.load_state_dict(state["updates"])
