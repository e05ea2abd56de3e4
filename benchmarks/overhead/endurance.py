"""A long run under the guard: does a step become dearer, does the process become larger?"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import gradguard
from benchmarks.overhead.optimizers import OPTIMIZERS
from benchmarks.overhead.workloads import WORKLOADS


WORKLOAD, OPTIMIZER = "mlp-4", "adamw-fused"
STRETCH = 10_000


@dataclass(frozen=True)
class Stretch:
    """A part of the run, with everything on: preset default and a record on disk.

    Args:
        last_step: number of steps when it ended.
        median: of `observe` and `step()`, microseconds.
        mean: likewise, probes and snapshots as they came.
        resident: memory of the process at its end, bytes.
        on_disk: size of the record so far, bytes.
    """

    last_step: int
    median: float
    mean: float
    resident: int
    on_disk: int


def endure(steps: int, stretch: int = STRETCH, on_step: Callable[[int], None] = lambda step: None) -> list[Stretch]:
    """Train for many steps and return what each stretch of them took.

    Args:
        steps: of the run.
        stretch: steps of each part.
        on_step: called with the number of steps done, now and then.
    """
    gc.collect()  # what was measured before is not part of this
    torch.manual_seed(0)
    workload = WORKLOADS[WORKLOAD]
    model = workload.make()
    optimizer = OPTIMIZERS[OPTIMIZER](model.parameters())
    batches = workload.batches()
    stretches, times = [], []
    with (
        TemporaryDirectory(prefix="overhead-") as folder,
        gradguard.attach(model, optimizer, run_dir=Path(folder, "run")) as guard,
    ):
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = model(*batches[step % len(batches)])
            loss.backward()
            start = time.perf_counter()
            guard.observe(loss)
            optimizer.step()
            times.append(time.perf_counter() - start)
            if step % 100 == 0:
                on_step(step)
            if len(times) == stretch or step == steps:
                taken = 1e6 * np.array(times)
                size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
                stretches.append(Stretch(step, float(np.median(taken)), float(taken.mean()), resident_bytes(), size))
                times.clear()
    return stretches


def resident_bytes() -> int:
    """Return the memory that this process holds now; 0 where the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
