"""A small sample of an activation: so many rows of samples by units, copied at once, since it may be changed in place.

Units are the last dimension and samples the others. Behind a convolution units are the channels, and a sample is one
position of one image; there are a few of each image.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


NUM_SAMPLES = 256  # samples over which a unit must be 0 to be called dead
MAX_ENTRIES = 32_768  # of one place
MAX_POSITIONS = 1024  # samples of images: neighbours are alike, so there are more of them
NUM_IMAGES = 32  # from as many images at least, where there are passes enough
GOLDEN = 0.6180339887498949  # multiples of it modulo 1 spread evenly


class Sample(NamedTuple):
    """Part of an activation.

    Args:
        values: (samples, units) float32, a copy.
        num_units: units of the whole activation.
        wanted: samples that there should be in all.
    """

    values: Tensor
    num_units: int
    wanted: int


def unit_stride(num_units: int, max_entries: int) -> int:
    """Return of how many units one is sampled: 1 for all, 2 for every second.

    Example:
        >>> unit_stride(64, MAX_ENTRIES), unit_stride(4096, MAX_ENTRIES)
        (1, 32)
    """
    return -(-num_units * NUM_SAMPLES // max_entries)


def sample_units(values: Tensor, num_spatial: int, have: int = 0, max_entries: int = MAX_ENTRIES) -> Sample:
    """Copy a sample out of an activation, without a wait for its device and without a random number.

    Args:
        values: (..., units), or (images, units, ...) with `num_spatial` further dimensions; of two dimensions at least,
            a dense floating tensor.
        num_spatial: 0 where the units are the last dimension.
        have: samples there are already.
        max_entries: of all samples; every second unit, every third, ... is taken where there are too many.

    Example:
        >>> sample_units(torch.zeros(4, 3, 8, 8), num_spatial=2)[0].shape
        torch.Size([128, 3])
    """
    values = values.detach()
    if num_spatial > 0 and values.ndim == num_spatial + 2:
        return _sample_images(values, have, max_entries)
    num_units = values.shape[-1]
    stride = unit_stride(num_units, max_entries)
    want = max(1, NUM_SAMPLES - have)
    if values.ndim > 2:
        values = values.view(-1, num_units) if values.is_contiguous() else _picked(values, want)
    if stride > 1:
        values = values[:, ::stride]
    if len(values) > want:
        values = values[torch.arange(want, device=values.device) * len(values) // want]
    return Sample(values.to(torch.float32, copy=True), num_units, NUM_SAMPLES)


def _sample_images(values: Tensor, have: int, max_entries: int) -> Sample:
    num_images, num_units = values.shape[:2]
    stride = unit_stride(num_units, max_entries)
    num_taken = -(-num_units // stride)
    total = math.prod(values.shape[2:])
    per_image = min(total, max(1, min(MAX_POSITIONS, max_entries // num_taken) // NUM_IMAGES))
    wanted = min(MAX_POSITIONS, max(NUM_SAMPLES, NUM_IMAGES * per_image))
    images = max(1, -(-(wanted - have) // per_image))
    if num_images > images:
        values = values[torch.arange(images, device=values.device) * num_images // images]
    if stride > 1:
        values = values[:, ::stride]
    if total > per_image:
        at: tuple[Any, ...] = (slice(None), slice(None), *_positions(values.shape[2:], per_image, values.device))
        values = values[at]
    rows = values.reshape(len(values), num_taken, -1).transpose(1, 2).reshape(-1, num_taken)
    return Sample(rows.to(torch.float32, copy=True), num_units, wanted)


def _picked(values: Tensor, count: int) -> Tensor:
    """Return up to `count` rows of a tensor that has no flat view, without a copy of all of it."""
    lead = values.shape[:-1]
    total = math.prod(lead)
    count = min(count, total)
    places = torch.arange(count, device=values.device) * total // count
    return values[_unravel(places, lead)]


@lru_cache(maxsize=256)
def _positions(spatial: torch.Size, count: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return indices of `count` positions of an image, spread over all rows and columns."""
    total = math.prod(spatial)
    spread = (torch.arange(count, device=device) + 0.5) * GOLDEN % 1.0
    return _unravel((spread * total).long().clamp_(max=total - 1), spatial)


def _unravel(places: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    indices: list[Tensor] = []
    for size in reversed(shape):
        indices.insert(0, places % size)
        places = places // size
    return tuple(indices)
