"""Which verified-finite states are kept for a rollback, and which of them can be trusted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard import last_good
from gradguard.finite_check import FiniteCheck
from gradguard.functional import nonfinite_tensors
from gradguard.snapshot import Snapshot, live_tensors, tensors_in


CONFIRM_AFTER = 10  # quiet steps after which a snapshot counts as taken before a fault, which may show late
ASIDE_STEPS = 50  # steps for which the state that a rollback replaced can be brought back


def free_memory_bytes() -> int | None:
    """Return the host memory that is free now, None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


class Snapshots:
    """The snapshots that `rollback` may use: the last confirmed one, and one that waits to be confirmed.

    A snapshot is only taken of a finite state, and counts only after `CONFIRM_AFTER` further steps without a finding: a
    fault that shows late would otherwise be saved as good.

    Args:
        model: what is saved.
        optimizer: what is saved.
        every: steps between snapshots; the first ones come after 10, 20, 30 steps, then after ever longer times.
        max_memory_share: none is taken that would need more than this share of the free memory.
        finite_check: tells what must not be saved; None for one of its own.

    Attributes:
        next_step: step from which the next one is taken.
        refusal: why the last one was not taken, "" when it was.
        nbytes: what the last one takes, or would have taken, bytes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        every: int,
        max_memory_share: float,
        finite_check: FiniteCheck | None = None,
    ) -> None:
        if finite_check is None:
            finite_check = FiniteCheck(model, more=lambda: live_tensors(model, optimizer, is_foreign=True))
            finite_check.bad()  # what is infinite now is meant to be
        self._finite_check = finite_check
        self._model = model
        self._optimizer = optimizer
        self._every = every
        self._max_memory_share = max_memory_share
        self._good: Snapshot | None = None
        self._pending: Snapshot | None = None
        self._aside: Snapshot | None = None
        self._spare: Snapshot | None = None  # its memory is for the next one
        self.next_step = 0
        self.refusal = ""
        self.nbytes = 0

    @property
    def good(self) -> Snapshot | None:
        """The snapshot that a rollback restores, None when there is none."""
        return self._good

    def _reason_to_refuse(self, live: dict[str, Tensor], bad: Sequence[str] | None) -> str:
        """Return why the present state is not to be saved, "" when it may be."""
        state = list(tensors_in(dict(self._optimizer.state)))
        self.nbytes = sum(tensor.nbytes for tensor in (*live.values(), *state))
        free = free_memory_bytes()
        if free is not None and self.nbytes > self._max_memory_share * free:
            return (
                f"a snapshot takes {self.nbytes / 1e6:,.0f} MB, more than {self._max_memory_share:.0%} of the "
                f"{free / 1e6:,.0f} MB that are free; raise snapshots.max_memory_share or drop rollback from the policy"
            )
        bad = self._finite_check.bad() if bad is None else bad
        if not bad and nonfinite_tensors(state):
            bad = ["the optimizer's state"]
        return f"{bad[0]} is not finite" if bad else ""

    def take(
        self, step: int, windows: dict[str, Any], is_confirmed: bool = False, bad: Sequence[str] | None = None
    ) -> bool:
        """Save the present state, unless it is not finite or memory is short; return whether it was saved.

        Args:
            step: optimizer steps so far.
            windows: the guard's rolling statistics.
            is_confirmed: it counts at once.
            bad: names of damaged tensors, None when they were not looked for just now.
        """
        if self._pending is not None and not is_confirmed and step < self._pending.step + CONFIRM_AFTER:
            self.next_step = self._pending.step + CONFIRM_AFTER  # one that waits is not replaced, or none is confirmed
            return False
        self.next_step = step + min(self._every, max(10, step // 4))
        live = live_tensors(self._model, self._optimizer)
        self.refusal = self._reason_to_refuse(live, bad)
        if self.refusal:
            return False
        spare, self._spare = self._spare, None
        snapshot = Snapshot(step, self._model, self._optimizer, windows, live, spare)
        if is_confirmed:
            self._good = snapshot
        else:
            self._pending = snapshot
        return True

    def confirm(self, step: int) -> None:
        """Count the waiting snapshot as good if it has been quiet since."""
        if self._pending is not None and step >= self._pending.step + CONFIRM_AFTER:
            if self._good is not None and not self._good.is_shared:
                self._spare = self._good
            self._good, self._pending, self._aside = self._pending, None, None

    def next_due(self, step: int) -> int:
        """Return the next step at which a snapshot is to be taken or confirmed."""
        waiting = self._pending.step + CONFIRM_AFTER if self._pending is not None else self.next_step
        return max(step + 1, min(self.next_step, waiting))

    def forget(self) -> None:
        """Drop every snapshot: what they hold no longer fits what is trained."""
        self._good = self._pending = self._aside = self._spare = None

    def distrust(self) -> None:
        """Drop the waiting snapshot: something was found wrong before it was confirmed; another is taken soon."""
        if self._pending is not None:
            self.next_step = self._pending.step + 2 * CONFIRM_AFTER
            self._pending = None

    def restore(self, step: int) -> None:
        """Put the good snapshot back, if there is one; the state that it replaces is set aside if it may be saved."""
        self._pending = None
        if self._good is not None:
            live = live_tensors(self._model, self._optimizer)
            may_save = not self._reason_to_refuse(live, None)
            self._aside = Snapshot(step, self._model, self._optimizer, {}, live) if may_save else None
            self._good.restore(self._model, self._optimizer)

    def save_good(self, path: Path) -> None:
        """Write the good snapshot, if there is one, as a checkpoint; see `last_good`.

        Raises:
            OSError: it could not be written.
        """
        if self._good is not None:
            last_good.save(last_good.as_checkpoint(self._good, self._model, self._optimizer), path)

    def take_aside(self, step: int) -> Snapshot | None:
        """Hand over the state that the last rollback replaced, if that was at most `ASIDE_STEPS` steps ago."""
        aside, self._aside = self._aside, None
        return None if aside is None or step - aside.step > ASIDE_STEPS else aside

    def state_dict(self) -> dict[str, Any]:
        """Return both snapshots and when the next one is due."""
        return {
            "good": self._good.state_dict() if self._good is not None else None,
            "pending": self._pending.state_dict() if self._pending is not None else None,
            "aside": self._aside.state_dict() if self._aside is not None else None,
            "next_step": self.next_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put saved snapshots in place of the present ones."""
        self._good = Snapshot.from_state_dict(state["good"]) if state["good"] is not None else None
        self._pending = Snapshot.from_state_dict(state["pending"]) if state["pending"] is not None else None
        self._aside = Snapshot.from_state_dict(state["aside"]) if state["aside"] is not None else None
        self.next_step = int(state["next_step"])
