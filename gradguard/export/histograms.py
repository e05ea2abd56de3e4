"""The recorded histograms of gradients, in counts of entries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradguard.audit.read import Run
from gradguard.gradients.magnitude_bins import bin_edges


class Histogram(NamedTuple):
    """How many entries of a gradient lie where.

    Attributes:
        min: smallest entry.
        max: largest entry.
        num: entries.
        sum: of all.
        sum_squares: of all.
        limits: upper edges of the bins, ascending.
        counts: entries in each bin.
    """

    min: float
    max: float
    num: float
    sum: float
    sum_squares: float
    limits: list[float]
    counts: list[float]


def histograms(run: Run) -> Iterator[tuple[int, str, Histogram]]:
    """Yield (step, parameter, histogram) for every probe and parameter whose gradient was there and finite.

    The bins of `run.gradients`: shares of a sample, if the policy has them sampled, times the size of the parameter.
    """
    gradients = run.gradients
    sizes = _sizes(run)
    steps = gradients["step"]
    for probe in range(gradients.num_steps):
        numbers = {name: gradients[name][probe] for name in ("mean", "std", "max", "min", "norm", "histogram")}
        with np.errstate(invalid="ignore"):  # what is not finite has no histogram, and is left out below
            edges = bin_edges(numbers["max"], numbers["min"])
        for place, name in enumerate(run.parameters):
            if numbers["norm"][place] < 0 or not np.isfinite([numbers["max"][place], numbers["min"][place]]).all():
                continue
            num = float(sizes.get(name, 1))
            mean, std = float(numbers["mean"][place]), float(numbers["std"][place])
            yield (
                int(steps[probe]),
                name,
                Histogram(
                    min=float(numbers["min"][place]),
                    max=float(numbers["max"][place]),
                    num=num,
                    sum=mean * num,
                    sum_squares=(mean**2 + std**2) * num,
                    limits=edges[place, 1:].tolist(),
                    counts=(numbers["histogram"][place].astype(np.float64) * num).tolist(),
                ),
            )


def _sizes(run: Run) -> dict[str, int]:
    """Return how many entries each parameter has; of one whose shape changed, the last."""
    try:
        return {
            str(name): math.prod(map(int, shape))
            for layout in run.info["layouts"]
            for name, shape in zip(layout["parameters"], layout["shapes"], strict=False)
        }
    except (KeyError, TypeError, ValueError, OverflowError):  # damaged: shares of one then
        return {}
