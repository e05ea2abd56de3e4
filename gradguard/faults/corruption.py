"""Corrupts the entries of one tensor, in place, and says what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch

from gradguard.errors import UsageError
from gradguard.faults.fault import Fault, Kind


class FloatFormat(NamedTuple):
    """How the bits of a floating type lie: sign, then the exponent, then the mantissa."""

    integer: torch.dtype  # of the same width
    exponent_bits: int
    mantissa_bits: int


FORMATS = {
    torch.float64: FloatFormat(torch.int64, 11, 52),
    torch.float32: FloatFormat(torch.int32, 8, 23),
    torch.float16: FloatFormat(torch.int16, 5, 10),
    torch.bfloat16: FloatFormat(torch.int16, 8, 7),
}


@dataclass(frozen=True)
class Damage:
    """What was done to a tensor; the index and the values are those of the first entry touched."""

    index: tuple[int, ...]
    before: float
    after: float
    num_entries: int


def check_dtype(dtype: torch.dtype, fault: Fault, owner: str) -> None:
    """Refuse a bit flip in a type that has no such bit.

    Raises:
        UsageError: with `owner`, the tensor's name in words.
    """
    if fault.what != "bitflip":
        return
    form = FORMATS.get(_real(dtype))
    if form is None:
        names = ", ".join(str(known).removeprefix("torch.") for known in FORMATS)
        raise UsageError(f"cannot flip an exponent bit in {owner}: its dtype is {dtype}; supported: {names}")
    if fault.exponent_bit >= form.exponent_bits:
        raise UsageError(
            f"cannot flip exponent bit {fault.exponent_bit} in {owner}: its dtype is {dtype}, with "
            f"{form.exponent_bits} exponent bits; use exponent_bit=0 to {form.exponent_bits - 1}"
        )


def flip_exponent_bit(values: torch.Tensor, bit: int = 0) -> torch.Tensor:
    """Return the values with one bit of the exponent inverted.

    Args:
        values: float64, float32, float16 or bfloat16, any shape.
        bit: 0 for the exponent's most significant bit.

    Example:
        >>> flip_exponent_bit(torch.tensor([0.02]))
        tensor([6.8056e+36])
        >>> flip_exponent_bit(flip_exponent_bit(torch.tensor([0.02])))
        tensor([0.0200])
    """
    form = FORMATS[values.dtype]
    mask = 1 << (form.mantissa_bits + form.exponent_bits - 1 - bit)
    return (values.contiguous().view(form.integer) ^ mask).view(values.dtype)


CORRUPTIONS: dict[Kind, Callable[[torch.Tensor, Fault], torch.Tensor]] = {
    "nan": lambda values, _: torch.full_like(values, float("nan")),
    "inf": lambda values, _: torch.full_like(values, float("inf")),
    "zero": lambda values, _: torch.zeros_like(values),
    "scale": lambda values, fault: values * (fault.factor or 0.0),
    "bitflip": lambda values, fault: flip_exponent_bit(values, fault.exponent_bit),
}


@torch.no_grad()
def corrupt_(tensor: torch.Tensor, fault: Fault, random: Random) -> Damage | None:
    """Corrupt the tensor in place, at as many entries as the fault says.

    Args:
        tensor: floating or complex, any shape and layout; a sharded tensor is struck in its local part, a sparse one in
            the values that it holds.
        fault: what to do.
        random: chooses the entries; torch's generators are not touched.

    Returns:
        What was done, or None when the tensor has no entries.
    """
    plain = _plain(tensor)
    if plain.numel() == 0:
        return None
    count = plain.numel() if fault.num_entries is None else min(fault.num_entries, plain.numel())
    place: tuple[Any, ...] = (...,)
    index = (0,) * plain.ndim
    if count < plain.numel():
        flat = torch.tensor(random.sample(range(plain.numel()), count), device=plain.device)
        place = torch.unravel_index(flat, plain.shape)
        index = tuple(int(axis[0]) for axis in place)
    values = plain[place]
    before = float(values.reshape(-1)[0])
    after = CORRUPTIONS[fault.what](values, fault)
    plain[place] = after
    return Damage(index, before, float(after.reshape(-1)[0]), count)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense real tensor that shares the memory."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor._values()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype
