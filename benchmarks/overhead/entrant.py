"""One contender in one cell, with everything that is its own."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.overhead.contenders import Contender, Setting
from benchmarks.overhead.samples import NOTED, PLAIN, PROBE, SNAPSHOT, Periodic, Samples
from benchmarks.overhead.workloads import Batch
from gradguard.guard import Guard


HELD_STEPS = 12  # after which windows are allocated and a second snapshot waits for its confirmation


class Entrant:
    """A contender with its copy of the model and its optimizer, and the times that it took.

    Args:
        contender: who it is.
        setting: what it is given; gradients are there.
        loss: that belongs to these gradients.
        settle: steps of a guard before its steps count.
        batches: that these steps are about; where there are none, the gradients stay what they are.
    """

    def __init__(
        self, contender: Contender, setting: Setting, loss: float, settle: int, batches: Sequence[Batch] = ()
    ) -> None:
        self.contender = contender
        self._batches = batches
        self.setting = setting
        self.samples = Samples()
        self._loss = loss
        with _Held(setting.params) as self.held:
            self.running = contender.begin(setting)
            self._settle(min(settle, HELD_STEPS))
        self._settle(settle - HELD_STEPS)

    def backward(self, batch: Batch | None) -> Tensor | float:
        """Leave fresh gradients and return the loss."""
        if batch is None:
            if self.running.on_gradients is not None:
                self.running.on_gradients()
            return self._loss
        self.setting.optimizer.zero_grad()
        loss: Tensor = self.setting.model(*batch)
        loss.backward()
        return loss.detach()

    def _settle(self, steps: int) -> None:
        """Fill a guard's rolling windows."""
        if self.running.guard is None or steps <= 0:
            return
        gradients = [param.grad for param in self.setting.params if param.grad is not None]
        source = [] if self._batches else [gradient.clone() for gradient in gradients]
        for step in range(steps):
            self.running.step(self.backward(self._batches[step % len(self._batches)] if self._batches else None))
            if source:
                torch._foreach_copy_(gradients, source)

    def take_turn(self, batch: Batch | None) -> None:
        """Take one step and note what it took."""
        guard, step = self.running.guard, self.running.step
        snapshots = guard.snapshots if guard is not None else None
        due = snapshots.next_step if snapshots is not None else 0
        is_probed = guard is not None and _is_probed(guard)
        start = time.perf_counter()
        loss = self.backward(batch)
        middle = time.perf_counter()
        step(loss)
        end = time.perf_counter()
        kinds = []
        if guard is not None and (is_probed or (guard.step - 1) % guard.policy.monitor.probe_every == 0):
            kinds.append(PROBE)
        if snapshots is not None and snapshots.next_step != due:
            kinds.append(SNAPSHOT)
        self.samples.backward.append(middle - start)
        self.samples.step.append(end - middle)
        if not kinds:
            kinds.append(NOTED if guard is not None and guard._pipeline.quiet.is_last else PLAIN)
        self.samples.kinds.append(kinds[0] if len(kinds) == 1 else "")

    def periodic(self) -> Periodic | None:
        """Return how often the guard does what it does now and then; None without a guard."""
        guard = self.running.guard
        if guard is None:
            return None
        every = guard.policy.snapshots.every if guard.snapshots is not None else None
        return Periodic(guard.policy.monitor.probe_every, every)

    def num_findings(self) -> int:
        """Return how many of the last records are about a finding; a healthy run has none."""
        guard = self.running.guard
        return sum(record.kind != "event" for record in guard.records) if guard is not None else 0

    def refusal(self) -> str:
        """Return why the guard took no snapshot, "" when it did or when there is none to take."""
        guard = self.running.guard
        return guard.snapshots.refusal if guard is not None and guard.snapshots is not None else ""


def _is_probed(guard: Guard) -> bool:
    """Return whether forward pass or step are looked at beyond the gradients, this time."""
    probes = guard._pipeline.probes
    return probes is not None and (probes.is_looking or probes.is_waited_for())


class _Held:
    """Counts the bytes that are allocated in a `with` block and still held after it, by Python, numpy and torch."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = params
        self.num_bytes = 0

    def __enter__(self) -> _Held:
        self._before = self._storages()
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        gc.collect()
        self.num_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        self.num_bytes += self._storages() - self._before

    def _storages(self) -> int:
        """Return the bytes of all tensors but the gradients, which Python may or may not have seen."""
        gradients = {p.grad.untyped_storage().data_ptr() for p in self._params if p.grad is not None}
        found = {}
        for thing in gc.get_objects():
            if type(thing) in (Tensor, nn.Parameter) and thing.layout == torch.strided:
                storage = thing.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        return sum(size for place, size in found.items() if place not in gradients)
