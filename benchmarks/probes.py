"""What the probes of activations and updates cost, see `python -m benchmarks.probes [ROUNDS]`.

Each workload is trained under probes that read everything. What is counted is the processor time of one thread inside
the probes' own calls and hooks, so that a busy machine counts little. The first probe also looks at the inputs of
weighted modules, the later ones only at those that may be a ReLU's. The share is what one probe adds to 50 steps, the
default `probe_every`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.overhead.workloads import choose
from gradguard.evidence.stats import StepStats
from gradguard.gradients.monitor import Monitor
from gradguard.model.inert_hook import InertHook
from gradguard.policy.load import load_policy
from gradguard.probes.schedule import Probes
from gradguard.record.recorder import Recorder


WORKLOADS = ("conv", "gpt-4-layers", "mlp-40")
EVERY = 50


class Reading:
    """A policy whose diagnoses read everything."""

    monitor = load_policy("default").monitor

    def reads(self) -> frozenset[str]:
        """See `Policy.reads`."""
        return frozenset({"activations", "updates"})


class Clock:
    """Adds up the time spent inside the functions that it wraps, the outermost ones."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def wrap(self, owner: type, name: str) -> None:
        """Put a timed function in place of a method."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.thread_time() - started

        setattr(owner, name, timed)


def measure(name: str, rounds: int, clock: Clock) -> tuple[float, float, float]:
    """Return seconds: the median step without probes, the first probe, the median of the later ones."""
    (workload,) = choose([name])
    torch.manual_seed(0)
    model, batches = workload.make(), workload.batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    monitor = Monitor(model, optimizer, ["*"])
    stats = StepStats(len(monitor.table))

    def fail(what: str, error: Exception) -> None:
        raise error

    def backward(step: int) -> None:
        inputs, targets = batches[step % len(batches)]
        optimizer.zero_grad()
        model(inputs, targets).backward()

    bare = []
    for step in range(40):
        started = time.thread_time()
        backward(step)
        optimizer.step()
        bare.append(time.thread_time() - started)
    probes = Probes(Reading(), monitor, Recorder(None, [], fail), fail)  # type: ignore[arg-type]
    probes.start(0)
    spent = []
    for step in range(EVERY * (rounds + 1)):
        if step % EVERY == 0:
            clock.seconds = 0.0
        backward(step)
        stats.step = step
        probes.launch(step)
        probes.fill(stats)
        probes.before_step(step, 1e-4)
        probes.judged(stats)
        optimizer.step()
        probes.after_step(step + 1, is_applied=True)
        if step % EVERY == EVERY - 1:
            spent.append(clock.seconds)
    probes.close()
    return median(bare[10:]), spent[0], median(spent[1:])


def main(rounds: int = 8, tell: Callable[[str], None] = print) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    clock = Clock()
    clock.wrap(InertHook, "__call__")
    for method in ("launch", "fill", "before_step", "judged", "after_step"):
        clock.wrap(Probes, method)
    tell("| workload | bare step, ms | first probe, ms | later probes, ms | over 50 steps |")
    tell("|---|---|---|---|---|")
    for name in WORKLOADS:
        usual, first, later = measure(name, rounds, clock)
        share = later / (EVERY * usual)
        tell(f"| {name} | {1e3 * usual:.2f} | {1e3 * first:.2f} | {1e3 * later:.2f} | {share:.2%} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
