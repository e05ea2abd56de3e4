"""Gradients to sums, extremes and counts on their own device: one small tensor a device, and nothing waits for it.

    gradients --gradient_columns--> (R, COLUMNS) float64 a device --host copy--> `full_statistics.finish`

Tensors of one size that are read whole, or by a sample, are stacked and reduced together. Larger ones are walked in
pieces that stay in the processor's cache, so that memory is read once and not once for every statistic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradguard.functional import dense_values, whole
from gradguard.gradients.extents import (
    PIECE,
    extent_of,
    extent_of_piece,
    extremes,
    join_extents,
    pieces_of,
    row_norms,
    wide_dtype,
)
from gradguard.gradients.flat_moments import flat_moments
from gradguard.gradients.magnitude_bins import NUM_BINS, NUM_SIDE
from gradguard.probes.entry_sample import NUM_SAMPLED, sample_positions


NUM_COUNTED = NUM_SAMPLED  # entries that the histogram of a large tensor is taken from even where all else is exact
FLAT = 1 << 17  # entries of all tensors together up to which numpy walks them as one array
SMALL = 1 << 16  # entries up to which tensors of one size are stacked
STACKED = 1 << 21  # entries
# Of the entries that were looked at: sum, sum of squared deviations from their mean (NaN: not taken), non-zeros, counts
# of the bins. Of all stored entries: norm, largest, smallest.
SUM, DEVIATION, NONZERO, NORM, MAX, MIN, BINS = range(7)
COLUMNS = BINS + NUM_BINS
_NUM_KEYS = 256  # place 128 + b counts positive entries of magnitude b, place b negative ones


class DeviceColumns(NamedTuple):
    """What one device measured of its gradients.

    Args:
        rows: positions of the R gradients in the list that was handed in; empty gradients have no row.
        values: (R, COLUMNS) float64 on the device.
        num_entries: entries of each gradient, implicit zeros of sparse ones included, complex ones as pairs.
        num_stored: those that are held in memory.
        num_used: those that sums and counts are about.
    """

    rows: list[int]
    values: Tensor
    num_entries: list[int]
    num_stored: list[int]
    num_used: list[int]


@torch.no_grad()
def gradient_columns(
    grads: Sequence[Tensor | None],
    step: int = 0,
    sample: int | None = NUM_SAMPLED,
    factor: float = 1.0,
    has_norms: bool = False,
) -> list[DeviceColumns]:
    """Measure gradients where they are, without a host sync (under torch's deterministic algorithms, CUDA has some).

    Args:
        grads: of any kind; None for an absent one.
        step: optimizer step: which sample is taken.
        sample: entries a tensor that sums and counts are taken from, >= 1; None for all.
        factor: all gradients are taken times this, such as the inverse of a loss scale; rounded to float32.
        has_norms: the norms are known; those of sampled gradients are NaN here, which saves a pass.
    """
    factor = float(np.float32(factor))
    placed: dict[torch.device, list[tuple[int, Tensor, int]]] = defaultdict(list)
    for row, grad in enumerate(grads):
        if grad is None:
            continue
        entries, num_entries = entries_of(grad)
        if num_entries:
            placed[entries.device].append((row, entries, num_entries))
    return [_measure(members, step, sample, factor, has_norms) for members in placed.values()]


def entries_of(grad: Tensor) -> tuple[Tensor, int]:
    """Return the entries that a gradient holds, flat and real, and how many it has with those that it does not hold.

    Of a sparse gradient that holds none, one zero is returned.
    """
    full = whole(grad.detach())
    entries = _flat(dense_values(full))
    num_entries = full.numel() * (2 if full.is_complex() else 1)
    return (entries if entries.numel() else entries.new_zeros(min(1, num_entries))), num_entries


def _measure(
    members: list[tuple[int, Tensor, int]], step: int, sample: int | None, factor: float, has_norms: bool
) -> DeviceColumns:
    tensors = [tensor for _, tensor, _ in members]
    sizes = [tensor.numel() for tensor in tensors]
    is_flat = all(tensor.is_cpu and tensor.dtype != torch.float64 for tensor in tensors)
    if is_flat and sum(sizes) <= FLAT and (sample is None or max(sizes) <= sample):
        rows, _, num_entries = map(list, zip(*members, strict=True))
        return DeviceColumns(rows, _columns_of_flat(tensors, factor), num_entries, sizes, sizes)
    stacked: dict[tuple[torch.dtype, int, bool], list[int]] = defaultdict(list)
    order: list[int] = []
    parts: list[Tensor] = []
    used = [entries.numel() for _, entries, _ in members]
    for place, (_, entries, _) in enumerate(members):
        is_sampled = sample is not None and entries.numel() > sample
        if is_sampled:
            used[place] = sample  # type: ignore[assignment]
        if is_sampled or entries.numel() <= SMALL:
            stacked[wide_dtype(entries.dtype), used[place], is_sampled].append(place)
        else:
            order.append(place)
            parts.append(_columns_of_all(entries, step, factor)[None])
    for (dtype, length, is_sampled), places in stacked.items():
        for some in _batches(places, max(1, STACKED // length)):
            tensors = [members[place][1] for place in some]
            if is_sampled:
                table, extent = _sampled(tensors, length, dtype, step, has_norms)
                extent *= factor
            else:
                table, extent = torch.stack([entries.to(dtype) for entries in tensors]), None
            if factor != 1.0:
                table *= factor
            parts.append(_columns_of_rows(table, extent))
            order += some
    return DeviceColumns(
        [members[place][0] for place in order],
        torch.cat(parts),
        [members[place][2] for place in order],
        [members[place][1].numel() for place in order],
        [used[place] for place in order],
    )


def _sampled(
    tensors: list[Tensor], num_sampled: int, dtype: torch.dtype, step: int, has_norms: bool
) -> tuple[Tensor, Tensor]:
    """Return (R, k) samples and (R, 3) float64 (norm, max, min) of R flat tensors on one device."""
    device = tensors[0].device
    table = torch.empty(len(tensors), num_sampled, dtype=dtype, device=device)
    positions = {numel: sample_positions(numel, step, num_sampled, device) for numel in {t.numel() for t in tensors}}
    extents = []
    for row, entries in zip(table, tensors, strict=True):  # one tensor after the other: the sample finds it cached
        extents.append(extremes(entries) if has_norms else extent_of(entries))
        row.copy_(entries.index_select(0, positions[entries.numel()]))
    return table, torch.stack(extents)


def _columns_of_flat(tensors: list[Tensor], factor: float) -> Tensor:
    """Return (R, COLUMNS) of few entries in host memory, where a call of torch costs more than the numbers."""
    found = flat_moments([entries.float().numpy() for entries in tensors], factor)
    head, extent, counts = map(torch.from_numpy, found)
    return torch.cat([head, extent, _window(counts, extent)], dim=1)


def _columns_of_rows(table: Tensor, extent: Tensor | None) -> Tensor:
    """Return (R, COLUMNS) of stacked entries (R, k); `extent` (R, 3) is (norm, max, min), None: those of the rows."""
    num_rows, length = table.shape
    if extent is None:
        columns = row_norms(table), table.amax(dim=1), table.amin(dim=1)
        extent = torch.stack(columns, dim=1).double()
    keys = _sign_and_magnitude(table)
    keys += torch.arange(128, num_rows * _NUM_KEYS, _NUM_KEYS, dtype=keys.dtype, device=table.device)[:, None]
    counts = _count(keys.view(-1), num_rows * _NUM_KEYS).view(num_rows, _NUM_KEYS)
    nonzero = table.count_nonzero(dim=1).double() if _may_have_zeros(counts) else counts.sum(dim=1)
    total = table.sum(dim=1)
    table -= (total / length)[:, None]
    deviation = row_norms(table).double().square()
    head = torch.stack([total.double(), deviation, nonzero], dim=1)
    return torch.cat([head, extent, _window(counts, extent)], dim=1)


def _columns_of_all(entries: Tensor, step: int, factor: float) -> Tensor:
    """Return (COLUMNS,) of every entry of a large tensor, piece by piece; the bins are those of a sample, times n/k."""
    totals, nonzeros, extents = [], [], []
    scratch = torch.empty(min(PIECE, entries.numel()), dtype=torch.bool)
    for piece in pieces_of(entries):
        if factor != 1.0:
            piece = piece * factor
        totals.append(piece.sum())
        extents.append(extent_of_piece(piece))
        nonzeros.append(_num_nonzero(piece, scratch))
    numel, extent = entries.numel(), join_extents(extents)
    used = min(NUM_COUNTED, numel)
    positions = _shared_positions(numel, step, used, entries.device)
    some = entries.gather(0, positions).to(wide_dtype(entries.dtype)) * factor
    counts = _count(_sign_and_magnitude(some) + 128, _NUM_KEYS) * (numel / used)
    head = torch.stack(
        [torch.stack(totals).double().sum(), extent.new_full((), torch.nan), torch.stack(nonzeros).sum()]
    )
    return torch.cat([head, extent, _window(counts[None], extent[None])[0]])


_shared_positions = lru_cache(maxsize=8)(sample_positions)  # the layers of a model have few different sizes


def _num_nonzero(piece: Tensor, scratch: Tensor) -> Tensor:
    """Return how many entries are not 0, () float64; `scratch` is bool memory for at least as many."""
    if piece.is_cpu:  # numpy compares and counts several times as fast as torch's count_nonzero
        is_nonzero = np.not_equal(piece.numpy(), 0, out=scratch[: piece.numel()].numpy())
        return torch.tensor(float(np.count_nonzero(is_nonzero)), dtype=torch.float64)
    return piece.count_nonzero().double()


def _sign_and_magnitude(entries: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the uppermost byte of each entry as a float32: b of `magnitude_bins`, or b - 128 of a negative entry.

    Float64 entries beyond the range of float32 go to its ends.

    Args:
        entries: float32 or float64.
        out: int32 memory for float32 entries, at least as many.
    """
    if entries.dtype == torch.float32:
        bits = entries.view(torch.int32)
        return bits >> 24 if out is None else torch.bitwise_right_shift(bits, 24, out=out[: bits.numel()])
    bits = entries.view(torch.int64)
    magnitude = ((bits >> 52 & 0x7FF) - (1023 - 127)).clamp_(0, 255) >> 1
    return magnitude - (bits < 0) * 128


def _may_have_zeros(counts: Tensor) -> bool:
    """Return False where it is known that no entry is of the smallest magnitudes, which zeros are among."""
    return counts.is_cuda or bool(counts.numpy()[..., :: _NUM_KEYS // 2].any())


def _count(keys: Tensor, size: int) -> Tensor:
    """Return how often each of the numbers 0 to size - 1 occurs, without a host sync."""
    if keys.is_cuda and not torch.are_deterministic_algorithms_enabled():  # bincount there asks for the largest key
        return torch.histc(keys.float() + 0.5, size, 0, size).double()
    return torch.bincount(keys, minlength=size).double()


def _window(counts: Tensor, extent: Tensor) -> Tensor:
    """Return (R, NUM_BINS) counts: those of the NUM_SIDE largest magnitudes of a sign, and the rest in the middle."""
    peak = torch.maximum(extent[:, 1].abs(), extent[:, 2].abs()).float()
    top = (peak.view(torch.int32) >> 24).long()
    places = top[:, None] + torch.arange(1 - NUM_SIDE, 1, device=counts.device)
    is_apart = places > 0  # b = 0 holds the zeros
    places = places.clamp_(min=0)
    above = counts.gather(1, places + 128) * is_apart
    below = counts.gather(1, places) * is_apart
    middle = counts.sum(1, keepdim=True) - above.sum(1, keepdim=True) - below.sum(1, keepdim=True)
    return torch.cat([below.flip(1), middle, above], dim=1)


def _batches(places: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(places), size):
        yield places[start : start + size]


def _flat(values: Tensor) -> Tensor:
    """Return the entries in the order of memory, so that a transposed tensor is not copied."""
    if not values.is_contiguous():
        values = values.permute(sorted(range(values.dim()), key=values.stride().__getitem__, reverse=True))
    return values.reshape(-1)
