"""A small sample of an activation: so many rows of samples by units, copied at once, since it may be changed in place.

Units are the last dimension and samples the others; behind a convolution units are the channels, samples the first
dimension, and of each image a few positions are taken.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


NUM_SAMPLES = 256  # samples over which a unit must be 0 to be called dead
MAX_ENTRIES = 65_536  # of one place
GOLDEN = 0.6180339887498949  # multiples of it modulo 1 spread evenly


class Sample(NamedTuple):
    """Part of an activation.

    Args:
        values: (rows, units) float32, a copy.
        num_samples: samples that the rows are about.
        num_units: units of the whole activation.
    """

    values: Tensor
    num_samples: int
    num_units: int


@torch.no_grad()
def sample_units(
    values: Tensor, num_spatial: int, want: int = NUM_SAMPLES, max_entries: int = MAX_ENTRIES, turn: int = 0
) -> Sample:
    """Copy a sample out of an activation, without a wait for its device and without a random number.

    Args:
        values: (..., units), or (samples, units, ...) with `num_spatial` further dimensions; of two dimensions at
            least, a dense floating tensor.
        num_spatial: 0 where the units are the last dimension.
        want: samples to take at most, >= 1.
        max_entries: of `NUM_SAMPLES` samples; every second unit, every third, ... is taken where there are too many.
        turn: another number gives other positions of the images.

    Example:
        >>> sample_units(torch.zeros(4, 3, 8, 8), num_spatial=2).values.shape
        torch.Size([340, 3])
    """
    values = values.detach()
    is_spatial = num_spatial > 0 and values.ndim == num_spatial + 2
    num_units = values.shape[1] if is_spatial else values.shape[-1]
    stride = -(-num_units * NUM_SAMPLES // max_entries)
    if is_spatial:
        per_sample = max(1, max_entries // (NUM_SAMPLES * -(-num_units // stride)))
        values = _at_positions(values[_rows(values, want)][:, ::stride], per_sample, turn)
        num_samples = min(want, values.shape[0])
        rows = values.movedim(1, -1).reshape(-1, values.shape[1])
    else:
        lead = values.shape[:-1]
        count = math.prod(lead)
        num_samples = min(want, count)
        if values.ndim > 2:
            values = _flat(values) if values.is_contiguous() else _picked(values, num_samples)
        rows = values[..., ::stride]
        rows = rows[_rows(rows, num_samples)]
    return Sample(rows.to(torch.float32, copy=True), num_samples, num_units)


def _flat(values: Tensor) -> Tensor:
    return values.view(-1, values.shape[-1])


def _rows(values: Tensor, want: int) -> Tensor | slice:
    """Return which rows are taken, evenly: all where there are few enough."""
    count = values.shape[0]
    if count <= want:
        return slice(None)
    return torch.arange(want, device=values.device) * count // want


def _picked(values: Tensor, count: int) -> Tensor:
    """Return `count` rows of a tensor that has no flat view, without a copy of all of it."""
    lead = values.shape[:-1]
    places = torch.arange(count, device=values.device) * math.prod(lead) // count
    return values[_unravel(places, lead)]


def _at_positions(values: Tensor, count: int, turn: int) -> Tensor:
    """Return (samples, units, positions): `count` positions behind the channels, all where there are few enough."""
    spatial = values.shape[2:]
    total = math.prod(spatial)
    if total <= count:
        return values.reshape(*values.shape[:2], total)
    spread = (torch.arange(count, device=values.device) + turn * count + 0.5) * GOLDEN % 1.0
    places = (spread * total).long().clamp_(max=total - 1)
    at: tuple[Any, ...] = (slice(None), slice(None), *_unravel(places, spatial))
    return values[at]


def _unravel(places: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    indices: list[Tensor] = []
    for size in reversed(shape):
        indices.insert(0, places % size)
        places = places // size
    return tuple(indices)
