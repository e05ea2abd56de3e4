"""Finds where NaN or infinity came into a step; only once there is some, so that a healthy step pays nothing for it.

weights out of all proportion? -> inputs of the batch -> the batch once more, module by module -> order of the gradients
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradguard.evidence.backward_origin import backward_origin
from gradguard.evidence.origin import Origin
from gradguard.evidence.stats import StepStats
from gradguard.flow.exchange import Exchange
from gradguard.flow.target import Target
from gradguard.gradients.monitor import Monitor
from gradguard.model.first_nonfinite import FirstNonfinite
from gradguard.model.forward_inputs import ForwardPass
from gradguard.model.model_boundary import input_tensors, is_readable
from gradguard.model.nonfinite_entries import absurd_entry, bad_samples, badness
from gradguard.model.parameter_names import clean_name, wrappers_of
from gradguard.model.rerun import rerun
from gradguard.model.rerun_obstacle import rerun_obstacle
from gradguard.policy.schema import Policy


NUM_FIRST = 3  # steps of a run that are looked into as soon as they come,
EVERY = 100  # and then one in so many: a forward pass in a hundred steps costs less than half a percent


class Locating:
    """Looks into steps that are not finite.

    Args:
        policy: says whether anyone asks, and whether a batch may be run once more.
        monitor: measured the gradients.
        target: its `last_call` holds what the model was given.
    """

    def __init__(self, policy: Policy, monitor: Monitor, target: Target) -> None:
        self._monitor = monitor
        self._target = target
        self._is_wanted = policy.locates()
        self._may_rerun = policy.monitor.rerun
        self._is_alone = not Exchange.is_needed()
        self._num_looks = 0
        self._last_look = 0
        self._last: Origin | None = None  # of the last look, if it found anything that may well come again

    def look(self, stats: StepStats) -> None:
        """Write into the stats of a step that is not finite where that began; whatever fails, the step goes on.

        Args:
            stats: of the step, measured; `origin` is written, and `bad_state` if weights are out of all proportion.
        """
        stats.origin = None
        if stats.bad_state or not self._is_wanted:
            return
        try:
            stats.origin = self._origin(stats)
        except Exception as error:  # it is the user's code that is run again, in a state that is not sound
            stats.origin = Origin("unknown", why=f"looking for it failed with {type(error).__name__}")
        if stats.origin.stage == "weights":
            stats.bad_state = stats.origin.parameters

    def _origin(self, stats: StepStats) -> Origin:
        if not self._is_alone:
            return Origin("unknown", why="each of several ranks sees its own batch")
        has_moved = self._target.is_past and not self._target.was_skipped  # weights are those after the step
        if not has_moved and (weight := self._weight()) is not None:
            return weight
        if stats.is_late:
            return self._without_forward(stats, "with `sync: deferred` the batch is gone by the time it is judged")
        call = self._target.last_call.call if self._target.last_call is not None else None
        given = _faulty_input(call) if call is not None else None
        if self._num_looks >= NUM_FIRST and stats.step < self._last_look + EVERY:
            return given or self._as_before(stats)
        self._num_looks, self._last_look = self._num_looks + 1, stats.step
        found = self._in_forward(stats, call, given)
        if found.stage != "input":  # which is looked at every time
            self._last = replace(found, seen_at=stats.step) if found.stage != "unknown" else None
        return found

    def _as_before(self, stats: StepStats) -> Origin:
        """Tell what is likely at a step that is not looked into."""
        found = self._without_forward(stats, f"it was last looked for at step {self._last_look}, in vain")
        is_loss_bad = stats.has_loss and not math.isfinite(stats.loss)
        other = "backward" if is_loss_bad else "loss" if stats.has_loss else ""
        if self._last is None or found.stage != "unknown" or self._last.stage == other:
            return found
        return self._last

    def _weight(self) -> Origin | None:
        for name, param in self._monitor.named:
            if is_readable(param) and (sizes := absurd_entry(param.detach())) is not None:
                largest, usual = sizes
                return Origin("weights", place=name, parameters=(name,), largest=largest, usual=usual)
        return None

    def _in_forward(self, stats: StepStats, call: ForwardPass | None, given: Origin | None) -> Origin:
        """Run the batch once more, and tell where it stops being finite."""
        obstacle = "" if self._may_rerun else "the policy has `rerun: false`"
        obstacle = obstacle or rerun_obstacle(self._target.model)
        if obstacle or call is None:
            return given or self._without_forward(stats, obstacle or "no call of the model was seen")
        model = self._target.model
        wrappers = wrappers_of(model)
        first = FirstNonfinite(model, clean=lambda name: clean_name(name, wrappers))
        with first.watching():
            is_random = rerun(model, call)
        if first.found is not None:
            return given or first.found
        num_passes = self._target.last_call.num_passes if self._target.last_call is not None else 1
        if num_passes > 1:
            return self._without_forward(stats, f"the last of {num_passes} forward passes is finite")
        return self._behind_forward(stats, first, is_random)

    def _behind_forward(self, stats: StepStats, first: FirstNonfinite, is_random: bool) -> Origin:
        """The forward pass is finite."""
        if stats.has_loss and not math.isfinite(stats.loss):
            return Origin("loss", is_likely=is_random, largest=first.exploded)
        found = backward_origin(stats, self._monitor.table.names, list(first.order))
        if stats.has_loss or found.place:
            return found
        return Origin("loss", is_likely=is_random, why="in the backward pass (no loss was observed)")

    def _without_forward(self, stats: StepStats, why: str) -> Origin:
        """Tell what the gradients alone tell."""
        if stats.has_loss and math.isfinite(stats.loss):
            found = backward_origin(stats, self._monitor.table.names, None)
            if found.place:
                return found
        return Origin("unknown", why=why)

    def state_dict(self) -> dict[str, Any]:
        """Return what decides about the looks to come."""
        last = None if self._last is None else self._last.as_dict()
        return {"num_looks": self._num_looks, "last_look": self._last_look, "last": last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._num_looks, self._last_look = state["num_looks"], state["last_look"]
        self._last = None if state["last"] is None else Origin.of_dict(state["last"])


def _faulty_input(call: ForwardPass) -> Origin | None:
    """Return the first input that holds NaN or infinity by mistake."""
    tensors: dict[str, Tensor] = input_tensors(call.args, call.kwargs)
    for name, tensor in tensors.items():
        if badness(tensor):
            bad = bad_samples(tensor)
            return Origin(
                "input",
                place=name,
                entries=bad.entries,
                samples=bad.samples,
                num_bad=bad.num_bad,
                num_samples=bad.num_samples,
            )
    return None
