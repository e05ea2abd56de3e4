"""What the probes of activations and updates cost: python -m benchmarks.probes [ROUNDS]

Each workload is trained twice in turn, once bare and once with the hooks and copies of a probe at every step that it
takes, 50 steps a round as with the default `probe_every`. All numbers are medians over rounds; the share is what the
probes of one round add to its 50 steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from benchmarks.overhead.workloads import choose
from gradguard.monitor import Monitor
from gradguard.policy.load import load_policy
from gradguard.probes import Probes
from gradguard.record.recorder import Recorder
from gradguard.stats import StepStats


WORKLOADS = ("conv", "gpt-4-layers", "mlp-40")
EVERY = 50


class Reading:
    """A policy whose diagnoses read everything."""

    def __init__(self) -> None:
        self.monitor = load_policy("default").monitor

    def reads(self) -> frozenset[str]:
        return frozenset({"activations", "updates"})


class Bench:
    """One workload: its steps, and the probes' part of each."""

    def __init__(self, name: str) -> None:
        (workload,) = choose([name])
        torch.manual_seed(0)
        self.model: nn.Module = workload.make()
        self.batches = workload.batches()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.monitor = Monitor(self.model, self.optimizer, ["*"])
        self.stats = StepStats(len(self.monitor.table))
        self.count = 0
        self.probes: Probes | None = None

    def step(self) -> float:
        """Take one step; return its seconds."""
        inputs, targets = self.batches[self.count % len(self.batches)]
        started = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(inputs, targets).backward()
        if self.probes is not None:
            self.stats.step = self.count
            self.probes.launch(self.count)
            self.probes.fill(self.stats)
            self.probes.judged(self.stats)
            self.probes.before_step(self.count, 1e-4)
        self.optimizer.step()
        self.count += 1
        if self.probes is not None:
            self.probes.after_step(self.count, is_applied=True)
        return time.perf_counter() - started


def measure(name: str, rounds: int) -> tuple[float, float, int]:
    """Return the median bare step (s), what a probe adds in all (s), and the steps over which it adds it."""
    bench = Bench(name)
    bare: list[float] = []
    added: list[list[float]] = []

    def fail(what: str, error: Exception) -> None:
        raise error

    for _ in range(20):
        bench.step()
    for number in range(rounds + 1):
        bare += [bench.step() for _ in range(EVERY // 2)]
        bench.count = 0
        bench.probes = Probes(Reading(), bench.monitor, Recorder(None, [], fail), fail)  # type: ignore[arg-type]
        bench.probes.start(0)
        with_probes = [bench.step() for _ in range(EVERY // 2)]
        bench.probes.close()
        bench.probes = None
        if number:
            added.append(with_probes)
    usual = median(bare)
    per_step = [median(column) - usual for column in zip(*added, strict=True)]
    busy = [extra for extra in per_step if extra > 0.02 * usual]
    return usual, sum(busy), len(busy)


def main(rounds: int = 30, tell: Callable[[str], None] = print) -> None:
    """Print the table."""
    tell("| workload | bare step, ms | a probe, ms | in steps | one step with it | every 50 steps |")
    tell("|---|---|---|---|---|---|")
    for name in WORKLOADS:
        usual, extra, steps = measure(name, rounds)
        most = 1 + extra / max(1, steps) / usual
        share = extra / (EVERY * usual)
        tell(f"| {name} | {1e3 * usual:.2f} | {1e3 * extra:.2f} | {steps} | {most:.2f}x | {share:.2%} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
