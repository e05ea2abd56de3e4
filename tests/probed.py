"""What a probe would have seen, with everything healthy but for what a test says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradguard.evidence.probe_stats import Activations, InputStats, OutputStats, Updates


def output(**fields: object) -> OutputStats:
    healthy = {"num_samples": 256, "num_units": 10, "spread": 1.0, "level": 1.0, "dead": 0.0, "shape": (64, 10)}
    return OutputStats(**{**healthy, **fields})  # type: ignore[arg-type]


def given(**fields: object) -> InputStats:
    healthy = {"name": "0", "mean": 0.0, "std": 1.0, "largest": 4.0, "nonfinite": 0, "shape": (64, 20)}
    return InputStats(**{**healthy, **fields})  # type: ignore[arg-type]


def activations(
    *,
    kinds: Sequence[str] = ("relu", "relu", "relu"),
    samples: int | Sequence[int] = 256,
    units: int | Sequence[int] = 64,
    dead: float | Sequence[float] = 0.1,
    saturated: float | Sequence[float] = math.nan,
    std: float | Sequence[float] = 0.5,
    mean: float | Sequence[float] = 0.2,
    out: OutputStats | None = None,
    inputs: Sequence[InputStats] = (),
    through_time: dict[str, float] | None = None,
) -> Activations:
    """Return a probe of as many places as there are kinds, named a, b, c, ...; one number stands for all of them."""
    count = len(kinds)

    def column(value: object, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=dtype), (count,)).copy()

    return Activations(
        names=tuple("abcdefghijklmnopqrstuvwxyz"[:count]),
        kinds=tuple(kinds),
        num_samples=column(samples, np.int64),
        num_units=column(units, np.int64),
        dead=column(dead, np.float32),
        saturated=column(saturated, np.float32),
        zero_ratio=column(0.4, np.float32),
        mean=column(mean, np.float32),
        std=column(std, np.float32),
        nonfinite=column(0, np.int64),
        output=out,
        inputs=tuple(inputs),
        through_time=through_time or {},
    )


def updates(
    norms: float | Sequence[float] = 1e-3,
    *,
    count: int = 3,
    weights: float | Sequence[float] = 1.0,
    step: int = 100,
    lr: float = 0.1,
    lr_max: float | None = None,
    cosine: float = 0.1,
    **fields: object,
) -> Updates:
    """Return what a probe saw of a step's updates to `count` parameters."""
    return Updates(
        update_norms=np.broadcast_to(np.asarray(norms, dtype=np.float32), (count,)).copy(),
        weight_norms=np.broadcast_to(np.asarray(weights, dtype=np.float32), (count,)).copy(),
        step=step,
        lr=lr,
        lr_max=lr if lr_max is None else lr_max,
        cosine=cosine,
        **fields,  # type: ignore[arg-type]
    )
