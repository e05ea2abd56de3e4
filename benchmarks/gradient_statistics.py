"""What full statistics of every gradient cost: `python -m benchmarks.gradient_statistics`.

One process; the ways take turns, so that whatever else the machine does is spread over all of them; medians and ratios.
Every way but the tutorials' also gives the norm, and the last two a histogram.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gradguard.gradients.full_statistics import measure
from gradguard.probes.entry_sample import NUM_SAMPLED


Way = Callable[[], object]
MIN_SPEEDUP = 3.0  # of exact over the hooks, at 124 M entries
MAX_READS = 2.5  # that sampled may cost, likewise


def gpt2_small() -> list[tuple[int, ...]]:
    """Return the shapes of GPT-2-small's 148 parameter tensors, 124 M entries."""
    block: list[tuple[int, ...]] = [(768,), (768,), (768, 2304), (2304,), (768, 768), (768,)]
    block += [(768,), (768,), (768, 3072), (3072,), (3072, 768), (768,)]
    return [(50257, 768), (1024, 768), *block * 12, (768,), (768,)]


def hooks(grads: list[Tensor]) -> object:
    """Return what a hook per parameter usually computes, each number fetched by itself."""
    return [
        (
            grad.mean().item(),
            grad.std().item(),
            grad.max().item(),
            grad.min().item(),
            (grad == 0).float().mean().item(),
        )
        for grad in grads
    ]


def reductions(grads: list[Tensor]) -> object:
    """Return the same and the norm by torch's reductions, fetched at once."""
    rows = [
        torch.stack([grad.mean(), grad.std(), grad.max(), grad.min(), grad.count_nonzero().float(), grad.norm()])
        for grad in grads
    ]
    return torch.stack(rows).tolist()


def time_in_turn(ways: dict[str, Way], repeats: int) -> dict[str, float]:
    """Return the median seconds of each way; the first turn is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def compare(title: str, shapes: list[tuple[int, ...]], repeats: int) -> dict[str, float]:
    """Time every way on random gradients of these shapes, print a table, return the seconds."""
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(shape, generator=generator) * 1e-3 for shape in shapes]
    names = [str(index) for index in range(len(grads))]
    seconds = time_in_turn(
        {
            "one read (norms)": lambda: torch._foreach_norm(grads),
            "tutorials' hooks": lambda: hooks(grads),
            "torch's reductions": lambda: reductions(grads),
            "exact": lambda: measure(names, grads, 0, None),
            "sampled": lambda: measure(names, grads, 0, NUM_SAMPLED),
        },
        repeats,
    )
    print(f"\n{title}, {torch.get_num_threads()} threads, median of {repeats}")
    print(f"{'':20}{'ms':>10}{'reads':>10}{'of hooks':>10}")
    for name, taken in seconds.items():
        reads, share = taken / seconds["one read (norms)"], taken / seconds["tutorials' hooks"]
        print(f"{name:20}{1e3 * taken:10.2f}{reads:10.2f}{share:10.2f}")
    return seconds


def main() -> None:
    """Print the tables and whether the targets hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradient_statistics")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    large = compare("GPT-2-small: 148 tensors, 124 M entries", gpt2_small(), arguments.repeats)
    compare("40 tensors of 256 x 256", [(256, 256)] * 40, arguments.repeats)
    speedup = large["tutorials' hooks"] / large["exact"]
    reads = large["sampled"] / large["one read (norms)"]
    print(
        f"\nexact is {speedup:.1f} times as fast as the hooks, target {MIN_SPEEDUP}: {_verdict(speedup >= MIN_SPEEDUP)}"
    )
    print(f"sampled costs {reads:.1f} reads, target {MAX_READS}: {_verdict(reads <= MAX_READS)}")


def _verdict(holds: bool) -> str:
    return "holds" if holds else "DOES NOT HOLD"


if __name__ == "__main__":
    main()
