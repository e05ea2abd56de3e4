"""What is rare about one step's measurements, as plain values and back; the rest is in its row of statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradguard.evidence.origin import Origin
from gradguard.evidence.stats import StepStats


# Attributes of `StepStats` that are nearly always as they are here.
USUAL: dict[str, Any] = {
    "overflowed": (),
    "exact_norms": {},
    "bad_state": (),
    "bad_ranks": (),
    "dropped_microbatches": 0,
    "scaler_skips": 0,
    "variance_growth": 1.0,
    "grown_variance": "",
}
# What else a judgement without a row reads.
SCALARS = (
    "step",
    "loss",
    "has_loss",
    "lr",
    "global_norm",
    "finite",
    "is_plain",
    "is_stale",
    "loss_scale",
    "found_inf",
    "is_late",
)


def is_remarkable(stats: StepStats) -> bool:
    """Return whether the row of a step would leave something out."""
    return bool(
        not stats.finite
        or stats.bad_state
        or stats.exact_norms
        or stats.overflowed
        or stats.dropped_microbatches
        or stats.scaler_skips
        or stats.bad_ranks
        or stats.grown_variance
        or stats.origin is not None
        or (stats.has_loss and stats.loss != stats.loss)
    )


def facts(stats: StepStats) -> dict[str, Any]:
    """Return what the row of a step leaves out."""
    told = {name: value for name, usual in USUAL.items() if (value := getattr(stats, name)) != usual}
    if stats.dropped_microbatches:
        told["num_microbatches"] = stats.num_microbatches
    if stats.nonfinite:
        rows = [(row, nan, inf) for row, (nan, inf) in stats.nonfinite.items()]
        told["nonfinite"] = np.array(rows, dtype=np.int64)
    if stats.has_loss and stats.loss != stats.loss:
        told["has_loss"] = True
    if stats.origin is not None:
        told["origin"] = stats.origin.as_dict()
    return told


def whole(stats: StepStats) -> dict[str, Any]:
    """Return all that a judgement without a row reads."""
    return {**{name: getattr(stats, name) for name in SCALARS}, **facts(stats), "norms": stats.norms}


def restore(stats: StepStats, told: dict[str, Any]) -> None:
    """Put what `facts` or `whole` returned into stats that hold what is usual.

    Raises:
        ValueError: it is not what they returned.
    """
    for name, value in told.items():
        if name == "nonfinite":
            stats.nonfinite = {row: (nan, inf) for row, nan, inf in value.tolist()}
        elif name == "origin":
            stats.origin = Origin.of_dict(value)
        elif name == "norms":
            stats.norms[:] = value
        elif name in ("overflowed", "bad_state", "bad_ranks"):
            setattr(stats, name, tuple(value))
        elif name in USUAL or name in SCALARS or name == "num_microbatches":
            setattr(stats, name, value)
        else:
            raise ValueError(f"unknown fact {name!r}")


def forget(stats: StepStats) -> None:
    """Put what is usual back."""
    for name, usual in USUAL.items():
        setattr(stats, name, usual)
    stats.exact_norms, stats.nonfinite, stats.num_microbatches, stats.origin = {}, {}, 0, None
