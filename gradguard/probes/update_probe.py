"""What the optimizer's step does to the parameters, from a few entries of each before and after it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradguard.evidence.probe_stats import Updates
from gradguard.evidence.stats import ABSENT, FloatArray, StepStats
from gradguard.gradients.monitor import Monitor
from gradguard.gradients.transfer import Transfer
from gradguard.model.outside_parameters import OutsideParameters
from gradguard.probes.parameter_entries import ParameterEntries


NUM_STEPS = 2  # applied steps that a probe looks at, so that two successive changes can be compared
MAX_CHECKED = 1 << 22  # entries of parameters that are compared whole, because no sampled entry of theirs moved


@dataclass
class Step:
    """One step that is looked at.

    Args:
        step: its number.
        lr: of the first param group, with the guard's factor.
        before: the entries before it.
        whole: {row: whole copy} of parameters whose sampled entries did not move the time before.
        changes: of the entries, float32.
        transfers: the numbers on their way to the host, one a device.
        had_gradient: (P,) rows with a gradient above 0 that the optimizer's rate lets move; None until it is known.
    """

    step: int
    lr: float
    before: list[Tensor]
    whole: dict[int, Tensor] = field(default_factory=dict)
    changes: list[Tensor] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    had_gradient: npt.NDArray[np.bool_] | None = None


class UpdateProbe:
    """Looks at two successive steps when a probe is due, or at every step.

    Args:
        monitor: gives the parameters.
        is_every_step: look at every step; it costs two passes over the sampled entries a step.
    """

    def __init__(self, monitor: Monitor, is_every_step: bool = False) -> None:
        self._monitor = monitor
        self._is_every_step = is_every_step
        self._outside = OutsideParameters(monitor)
        self._open: Step | None = None  # between before and after
        self._taken: list[Step] = []  # not read yet
        self._ready: Updates | None = None
        self._num_wanted = 0
        self._previous: list[Tensor] = []
        self._suspects: tuple[int, ...] = ()
        self._lr_max = 0.0
        self.read_layout()

    def read_layout(self) -> None:
        """Read the monitor's parameters afresh; what was under way is dropped."""
        self._entries = ParameterEntries(self._monitor.params)
        self._without = np.array([param.requires_grad for param in self._monitor.params], dtype=bool)
        self._open, self._taken, self._ready = None, [], None
        self._previous, self._suspects = [], ()
        self._outside.read_layout()
        self.begin()

    def is_under_way(self) -> bool:
        """Return whether a step is looked at, or its numbers wait to be collected."""
        return self._is_every_step or self._num_wanted > 0 or self._open is not None or self.has_news()

    def has_news(self) -> bool:
        """Return whether numbers wait to be collected."""
        return bool(self._taken) or self._ready is not None

    def note_rate(self, lr: float) -> None:
        """Note the learning rate of a step, looked at or not."""
        self._lr_max = max(self._lr_max, lr)

    def begin(self) -> None:
        """Start a probe: the next applied steps are looked at."""
        self._num_wanted = max(self._num_wanted, NUM_STEPS)

    def note(self, stats: StepStats) -> None:
        """Learn which parameters had a gradient at a step that was judged, looked at or not."""
        if self._without.any():
            self._without &= stats.norms == ABSENT
        for taken in (*self._taken, *([self._open] if self._open is not None else ())):
            if taken.step == stats.step and taken.had_gradient is None:
                taken.had_gradient = (stats.norms > 0) & self._may_move()

    def _may_move(self) -> npt.NDArray[np.bool_]:
        """Return (P,) whether the rate of the parameter's group is above 0, as it is not at the start of a warm-up."""
        rates = [float(group.get("lr", 1.0)) for group in self._monitor.optimizer.param_groups]
        return np.array([rates[group] > 0 for group in self._monitor.table.groups], dtype=bool)

    def before_step(self, step: int, lr: float) -> None:
        """Copy entries just before torch's step, if this is a step to look at."""
        self._open = None
        self.note_rate(lr)
        self.read()
        if self._num_wanted or self._is_every_step:
            params = self._monitor.params
            whole = {row: params[row].detach().clone() for row in self._suspects}
            self._open = Step(step, lr, self._entries.copy(params), whole)

    @torch.no_grad()
    def after_step(self, is_applied: bool) -> None:
        """Start to measure what the step changed."""
        taken, self._open = self._open, None
        if taken is None or not is_applied:
            return
        params = self._monitor.params
        after = self._entries.copy(params)
        taken.changes = [new.float() - old.float() for new, old in zip(after, taken.before, strict=True)]
        taken.before = []
        parts: dict[torch.device, dict[str, list[Tensor]]] = {}
        for index, views in enumerate(self._entries.split(taken.changes)):
            change = taken.changes[index]
            here = parts.setdefault(change.device, {"norms": [], "dots": []})
            here["norms"] += torch._foreach_norm(views, 2)
            if self._previous:
                previous = self._previous[index].to(change.device)
                here["dots"].append(torch.stack([change.dot(previous), change.dot(change), previous.dot(previous)]))
        for row, whole in taken.whole.items():
            moved = (params[row].detach() != whole).any()
            parts[moved.device][f"moved {row}"] = [moved.float()]
        taken.transfers = [
            Transfer({name: torch.stack(values) for name, values in here.items() if values}) for here in parts.values()
        ]
        taken.whole = {}
        self._taken.append(taken)

    def drop(self, step: int) -> None:
        """Forget a step: the device skipped it."""
        self._taken = [taken for taken in self._taken if taken.step != step]

    def read(self, before: int | None = None) -> None:
        """Take in the numbers of the steps that were looked at, but for `before` and later ones."""
        taken = [step for step in self._taken if before is None or step.step < before]
        self._taken = [step for step in self._taken if before is not None and step.step >= before]
        for step in taken:
            self._read(step)

    def collect(self, weight_norms: FloatArray, before: int | None = None) -> Updates | None:
        """Return what is new since the last call, None when nothing is.

        Args:
            weight_norms: (P,) as they were sampled last.
            before: as for `read`.
        """
        self.read(before)
        ready, self._ready = self._ready, None
        return None if ready is None else replace(ready, weight_norms=weight_norms.copy())

    def _read(self, taken: Step) -> None:
        arrived = [transfer.read() for transfer in taken.transfers]
        rows, factors = self._entries.rows, np.array(self._entries.factors)
        norms = np.concatenate([part["norms"] for part in arrived]) if arrived else np.empty(0)
        is_still = (norms == 0.0) & taken.had_gradient[rows] if taken.had_gradient is not None else norms < 0.0
        known_still = {
            int(name.removeprefix("moved "))
            for part in arrived
            for name, value in part.items()
            if name.startswith("moved ") and value[0] == 0.0
        }
        still = [(row, factor) for row, factor, is_it in zip(rows, factors, is_still, strict=True) if is_it]
        self._suspects = self._affordable([row for row, factor in still if factor > 1.0])
        dots = sum((part["dots"].reshape(-1, 3).sum(0) for part in arrived if "dots" in part), np.zeros(3))
        scale = math.sqrt(dots[1] * dots[2])
        self._previous = taken.changes
        self._num_wanted = max(0, self._num_wanted - 1)
        if self._num_wanted and not self._is_every_step:
            return
        update_norms = np.full(len(self._without), np.nan, dtype=np.float32)
        update_norms[rows] = norms * np.sqrt(factors)
        self._ready = Updates(
            update_norms=update_norms,
            weight_norms=np.empty(0, dtype=np.float32),  # filled in by `collect`
            step=taken.step,
            lr=taken.lr,
            lr_max=self._lr_max,
            cosine=float(dots[0]) / scale if 0.0 < scale < math.inf else math.nan,
            unmoved=tuple(row for row, factor in still if factor == 1.0 or row in known_still),
            untrained=self._outside.untrained(taken.step),
            without_gradient=tuple(np.flatnonzero(self._without).tolist()),
        )
        if not self._is_every_step:
            self._previous, self._suspects = [], ()

    def _affordable(self, rows: list[int]) -> tuple[int, ...]:
        """Return the rows that can be compared whole."""
        ends = np.cumsum([self._monitor.params[row].numel() for row in rows])
        return tuple(row for row, end in zip(rows, ends, strict=True) if end <= MAX_CHECKED)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; what is on its way is taken in first."""
        self.read()
        return {
            "num_wanted": self._num_wanted,
            "previous": list(self._previous),
            "suspects": list(self._suspects),
            "lr_max": self._lr_max,
            "without": self._without,
            "ready": None if self._ready is None else vars(self._ready),
            "outside": self._outside.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; the parameters have been loaded before."""
        self._open, self._taken = None, []
        self._num_wanted, self._lr_max = state["num_wanted"], state["lr_max"]
        self._previous = [torch.as_tensor(values) for values in state["previous"]]
        self._suspects = tuple(state["suspects"])
        self._without = np.array(state["without"], dtype=bool)
        ready = state["ready"]
        names = ("unmoved", "untrained", "without_gradient")
        self._ready = None if ready is None else Updates(**{**ready, **{name: tuple(ready[name]) for name in names}})
        self._outside.load_state_dict(state["outside"])
