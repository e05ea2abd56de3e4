"""Which verified-finite states are kept, which of them can be trusted, and which one a rollback goes back to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.errors import RecordError
from gradguard.functional import nonfinite_tensors
from gradguard.model.finite_check import FiniteCheck
from gradguard.snapshots.companions import Companions
from gradguard.snapshots.free_memory import free_memory_bytes
from gradguard.snapshots.snapshot import Snapshot, live_tensors
from gradguard.snapshots.snapshot_file import SnapshotFile
from gradguard.snapshots.state_copy import tensors_in


CONFIRM_AFTER = 10  # quiet steps after which a snapshot counts as taken before a fault, which may show late
NOT_FINITE = "is not finite"  # ends a refusal of a bad state
ASIDE_STEPS = 50  # steps for which the state that a rollback replaced can be brought back

Kept = Snapshot | SnapshotFile


class Snapshots:
    """A ring of confirmed snapshots, the one of the start if it may be needed, and one that waits to be confirmed.

    A snapshot is only taken of a finite state, and counts only after `CONFIRM_AFTER` further steps without a finding: a
    fault that shows late would otherwise be saved as good. Only a confirmed one makes room for itself in the ring.

    Args:
        model: what is saved.
        optimizer: what is saved.
        every: steps between snapshots; the first ones come after 10, 20, 30 steps, then after ever longer times.
        max_memory_share: none is taken in memory that would need more than this share of what is free.
        finite_check: tells what must not be saved; None for one of its own.
        keep: size of the ring, >= 1.
        keeps_start: step up to which the first state is kept; 0 for not at all, infinite for as long as there is one.
        companions: what is saved beside model and optimizer; None for nothing.
        folder: where snapshots are written to; None keeps them in host memory.

    Attributes:
        next_step: step from which the next one is taken.
        refusal: why the last one was not taken or cannot be used, "" when it was.
        nbytes: what the last one takes, or would have taken, bytes.
        num_copies: how many may be held at a time; one more for `ASIDE_STEPS` steps after a rollback.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        every: int,
        max_memory_share: float,
        finite_check: FiniteCheck | None = None,
        *,
        keep: int = 1,
        keeps_start: float = 0,
        companions: Companions | None = None,
        folder: Path | None = None,
    ) -> None:
        if finite_check is None:
            finite_check = FiniteCheck(model, more=lambda: live_tensors(model, optimizer, is_foreign=True))
            finite_check.bad()  # what is infinite now is meant to be
        self._finite_check = finite_check
        self._model = model
        self._optimizer = optimizer
        self._every = every
        self._max_memory_share = max_memory_share
        self._keep = keep
        self._keeps_start = keeps_start
        self.companions = Companions(optimizer) if companions is None else companions
        self.folder = folder
        self.num_copies = keep + 1 + (keeps_start > 0)
        self._ring: list[Kept] = []  # oldest first
        self._start: Kept | None = None
        self._pending: Kept | None = None
        self._aside: Snapshot | None = None
        self._spare: Snapshot | None = None  # its memory is for the next one
        self._is_used = False  # the newest was restored, and none was confirmed since
        self.next_step = 0
        self.refusal = ""
        self.nbytes = 0

    @property
    def good(self) -> Kept | None:
        """The newest confirmed snapshot, None when there is none."""
        return self._ring[-1] if self._ring else None

    def _reason_to_refuse(self, live: dict[str, Tensor], bad: Sequence[str] | None, is_in_memory: bool) -> str:
        """Return why the present state is not to be saved, "" when it may be."""
        state = list(tensors_in(dict(self._optimizer.state)))
        try:
            also = self.companions.live()
        except Exception as error:  # of the user's own objects
            return f"what attach(also=...) was given cannot be saved: {error!r}"
        self.nbytes = sum(tensor.nbytes for part in (live.values(), state, *also.values()) for tensor in part)
        free = free_memory_bytes() if is_in_memory else None
        if free is not None and self.nbytes > self._max_memory_share * free:
            return (
                f"a snapshot takes {self.nbytes / 1e6:,.0f} MB, more than {self._max_memory_share:.0%} of the "
                f"{free / 1e6:,.0f} MB that are free; raise snapshots.max_memory_share or drop rollback from the policy"
            )
        bad = self._finite_check.bad() if bad is None else bad
        if not bad and nonfinite_tensors(state):
            bad = ["the optimizer's state"]
        if not bad:
            bad = [name for name, tensors in also.items() if nonfinite_tensors(tensors)]
        return f"{bad[0]} {NOT_FINITE}" if bad else ""

    def take(
        self, step: int, windows: dict[str, Any], is_confirmed: bool = False, bad: Sequence[str] | None = None
    ) -> bool:
        """Save the present state, unless it is not finite or memory is short; return whether it was saved.

        Args:
            step: optimizer steps so far.
            windows: the guard's rolling statistics.
            is_confirmed: it counts at once, and it is what the run starts from: no other is kept.
            bad: names of damaged tensors, None when they were not looked for just now.
        """
        if self._pending is not None and not is_confirmed and step < self._pending.step + CONFIRM_AFTER:
            self.next_step = self._pending.step + CONFIRM_AFTER  # one that waits is not replaced, or none is confirmed
            return False
        self.next_step = step + min(self._every, max(10, step // 4))
        live = live_tensors(self._model, self._optimizer)
        self.refusal = self._reason_to_refuse(live, bad, is_in_memory=self.folder is None)
        if self.refusal:
            return False
        spare, self._spare = self._spare, None
        is_copied = self.folder is None
        snapshot = Snapshot(step, self._model, self._optimizer, windows, live, spare, self.companions, is_copied)
        kept = self._store(snapshot)
        if kept is None:
            return False
        if is_confirmed:
            self._let_go(*[old for old in self._ring if old is not self._start], self._start)
            self._ring, self._is_used = [kept], False
            self._start = kept if step < self._keeps_start else None
        else:
            self._pending = kept
        return True

    def _store(self, snapshot: Snapshot) -> Kept | None:
        """Return what stands for a snapshot where they are kept; None, with the reason told, when it cannot be kept."""
        if self.folder is None:
            return snapshot
        try:
            return SnapshotFile(self.folder, snapshot)
        except OSError as error:
            self.refusal = str(error)
            return None

    def _let_go(self, *unused: Kept | None) -> None:
        """Free what these take, the start's and the newest's excepted; the memory of one is for the next snapshot."""
        for kept in unused:
            if kept is None:
                continue
            kept.let_go()
            if isinstance(kept, Snapshot) and not kept.is_shared:
                self._spare = kept

    def confirm(self, step: int) -> None:
        """Count the waiting snapshot as good if it has been quiet since; the oldest of a full ring makes room."""
        if step > self._keeps_start and (start := self._start) is not None:
            self._start = None
            self._let_go(start if start not in self._ring else None)
        if self._pending is not None and step >= self._pending.step + CONFIRM_AFTER:
            self._ring.append(self._pending)
            self._pending = self._aside = None
            self._is_used = False
            while len(self._ring) > self._keep:
                oldest = self._ring.pop(0)
                self._let_go(oldest if oldest is not self._start else None)

    def next_due(self, step: int) -> int:
        """Return the next step at which a snapshot is to be taken or confirmed."""
        waiting = self._pending.step + CONFIRM_AFTER if self._pending is not None else self.next_step
        return max(step + 1, min(self.next_step, waiting))

    def forget(self) -> None:
        """Drop every snapshot: what they hold no longer fits what is trained."""
        self._let_go(*self._ring, self._pending, self._start)
        self._ring = []
        self._start = self._pending = self._aside = self._spare = None

    def distrust(self) -> None:
        """Drop the waiting snapshot: something was found wrong before it was confirmed; another is taken soon."""
        if self._pending is not None:
            self.next_step = self._pending.step + 2 * CONFIRM_AFTER
            self._let_go(self._pending)
            self._pending = None

    def restore(self, step: int, is_deeper: bool = True) -> Snapshot | None:
        """Go back to the last state that can be trusted; the state that it replaces is set aside if it may be saved.

        A second time before another state was confirmed, the one before is taken, if the ring has one: what was gone
        back to did not hold.

        Args:
            step: optimizer steps so far.
            is_deeper: a second time goes further back.

        Returns:
            The snapshot that was put back, None when there is none; then nothing was changed.
        """
        if is_deeper and self._is_used and len(self._ring) > 1:
            self._drop_newest()
        snapshot = None
        while self._ring and (snapshot := self._read(self._ring[-1])) is None:
            self._drop_newest()
        if snapshot is None:
            return None
        self._let_go(self._pending)
        self._pending = None
        live = live_tensors(self._model, self._optimizer)
        may_save = not self._reason_to_refuse(live, None, is_in_memory=True)
        spare, self._spare, self._aside = self._spare, None, None
        if may_save:
            self._aside = Snapshot(step, self._model, self._optimizer, {}, live, spare, self.companions)
        self.put_back(snapshot)
        self._is_used = True
        return snapshot

    def restart(self, step: int, keeps_schedule: bool) -> Snapshot | None:
        """Go back to the first state; those that came after it are dropped.

        Args:
            step: optimizer steps so far.
            keeps_schedule: schedulers that were handed over go on from where they are.

        Returns:
            The snapshot that was put back, None when there is none; then nothing was changed.
        """
        start = self._start
        snapshot = self._read(start) if start is not None else None
        if start is None or snapshot is None:
            return None
        self._let_go(*[kept for kept in self._ring if kept is not start], self._pending)
        self._ring, self._pending, self._aside, self._is_used = [start], None, None, False
        self.next_step = step + CONFIRM_AFTER
        self.put_back(snapshot, keeps_schedule)
        return snapshot

    def _drop_newest(self) -> None:
        newest = self._ring.pop()
        self._let_go(newest if newest is not self._start else None)

    def _read(self, kept: Kept) -> Snapshot | None:
        try:
            return kept.read()
        except RecordError as error:
            self.refusal = str(error)
            return None

    def put_back(self, snapshot: Snapshot, keeps_schedule: bool = False) -> None:
        """Put a snapshot's state in place of the present one; see `Snapshot.restore`."""
        snapshot.restore(self._model, self._optimizer, self.companions, keeps_schedule)

    def take_aside(self, step: int) -> Snapshot | None:
        """Hand over the state that the last rollback replaced, if that was at most `ASIDE_STEPS` steps ago."""
        aside, self._aside = self._aside, None
        if aside is None or step - aside.step > ASIDE_STEPS:
            return None
        self._is_used = False
        return aside

    def state_dict(self) -> dict[str, Any]:
        """Return all snapshots and when the next one is due; those in files are read."""
        is_start_apart = self._start is not None and not any(kept is self._start for kept in self._ring)
        return {
            "good": [kept.state_dict() for kept in self._ring],
            "start": self._start.state_dict() if self._start is not None and is_start_apart else None,
            "pending": self._pending.state_dict() if self._pending is not None else None,
            "aside": self._aside.state_dict() if self._aside is not None else None,
            "starts_ring": self._start is not None and not is_start_apart,
            "is_used": self._is_used,
            "next_step": self.next_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put saved snapshots in place of the present ones; a smaller ring takes the newest of a larger one."""
        self.forget()
        good = state["good"]
        saved = [self._load(item) for item in good[-self._keep :]]
        self._ring = [kept for kept in saved if kept is not None]
        if self._keeps_start > 0 and state["starts_ring"]:
            self._start = saved[0] if len(saved) == len(good) else self._load(good[0])
        elif self._keeps_start > 0:
            self._start = self._load(state["start"])
        self._pending = self._load(state["pending"])
        self._aside = Snapshot.from_state_dict(state["aside"]) if state["aside"] is not None else None
        self._is_used, self.next_step = bool(state["is_used"]), int(state["next_step"])

    def _load(self, state: dict[str, Any] | None) -> Kept | None:
        return self._store(Snapshot.from_state_dict(state)) if state is not None else None
