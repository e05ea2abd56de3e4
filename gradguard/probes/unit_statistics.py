"""Samples of activations to unit-level statistics, on their own device: a few numbers a place, and nothing waits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


DORMANT_KINDS = frozenset({"gelu", "silu", "mish"})  # hardly ever exactly 0
DORMANT = 0.025  # mean magnitude beside that of all units; Sokar et al. 2023, arXiv:2302.12902, definition 1
TANH_FLAT = 0.99  # magnitude from which a tanh has less than 2 % of its slope left
SIGMOID_FLAT = 0.0067  # distance from 0 or 1 within which a sigmoid has less than 2.7 % of its slope left
STACKED = 1 << 17  # entries that are reduced together and stay in the processor's cache

DEAD, SATURATED, ZERO_RATIO, MEAN, STD, LOWEST = range(6)
COLUMNS = 6


class UnitColumns(NamedTuple):
    """What one device measured.

    Args:
        rows: positions of the L samples in the list that was handed in.
        values: (L, COLUMNS) float32 on the device.
    """

    rows: list[int]
    values: Tensor


@torch.no_grad()
def unit_columns(samples: Sequence[Tensor], kinds: Sequence[str]) -> list[UnitColumns]:
    """Measure samples where they are, one small tensor a device.

    Args:
        samples: each (rows, units) float32, of one row and one unit at least.
        kinds: of the activations.
    """
    groups: dict[tuple[torch.device, torch.Size, str], list[int]] = defaultdict(list)
    for row, (sample, kind) in enumerate(zip(samples, kinds, strict=True)):
        group = kind if kind in ("tanh", "sigmoid") else "dormant" if kind in DORMANT_KINDS else ""
        groups[sample.device, sample.shape, group].append(row)
    placed: dict[torch.device, list[tuple[list[int], Tensor]]] = defaultdict(list)
    for (device, shape, group), rows in groups.items():
        size = max(1, STACKED // shape.numel())
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            together = samples[part[0]][None] if len(part) == 1 else torch.stack([samples[row] for row in part])
            placed[device].append((part, _measure(together, group)))
    return [
        UnitColumns([row for part, _ in parts for row in part], torch.cat([values for _, values in parts]))
        for parts in placed.values()
    ]


def _measure(values: Tensor, group: str) -> Tensor:
    """Return (L, COLUMNS) of (L, rows, units)."""
    count = values.shape[1] * values.shape[2]
    magnitudes = values.abs()
    magnitude = magnitudes.sum(1)
    is_dead = _is_dead(magnitude, group == "dormant")
    mean = values.mean((1, 2))
    std = torch.linalg.vector_norm(values - mean[:, None, None], dim=(1, 2)) / math.sqrt(count)
    if group == "tanh":
        saturated = _share_above(magnitudes, TANH_FLAT)
    elif group == "sigmoid":
        saturated = _share_above((values - 0.5).abs_(), 0.5 - SIGMOID_FLAT)
    else:
        saturated = torch.full_like(mean, math.nan)
    zero_ratio = 1.0 - _share_above(magnitudes, 0.0)
    return torch.stack([is_dead.float().mean(1), saturated, zero_ratio, mean, std, values.amin((1, 2))], dim=1)


def _is_dead(magnitude: Tensor, is_dormant: bool) -> Tensor:
    """Return (L, units) from the units' summed magnitudes, (L, units)."""
    if not is_dormant:
        return magnitude == 0
    mean = magnitude.mean(1, keepdim=True)
    return (magnitude <= DORMANT * mean) & mean.isfinite()


@torch.no_grad()
def dead_units(sample: Tensor, kind: str) -> Tensor:
    """Return (units,) bool, which units the share of dead ones counts.

    Args:
        sample: (rows, units) float32.
        kind: of the activation.

    Example:
        >>> dead_units(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "relu")
        tensor([ True, False])
    """
    return _is_dead(sample.abs().sum(0, keepdim=True), kind in DORMANT_KINDS)[0]


def _share_above(values: Tensor, limit: float) -> Tensor:
    """Return (L,) the share of entries above a limit, NaN taken as none; five times as fast as counting booleans."""
    return (values - limit).sign_().clamp_(min=0.0).mean((1, 2))
