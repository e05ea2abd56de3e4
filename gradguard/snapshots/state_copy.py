"""Copies of nested state, such as an optimizer's, and the way back into the tensors that are live."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradguard.gradients.sharded import local, spread_like


def host_copy(value: Any, into: Any = None) -> Any:
    """Return a copy of a nested state with every tensor in host memory: in that of `into`, where it fits.

    Memory that was written to before costs a tenth of fresh pages. What comes from a CUDA device goes to pinned memory,
    which the device reads and writes several times as fast.
    """
    if isinstance(value, Tensor):
        part = local(value.detach() if value.requires_grad else value)
        if isinstance(into, Tensor) and into.shape == part.shape and into.dtype == part.dtype:
            return into.copy_(part)
        if part.is_cuda and part.layout == torch.strided and part.ndim > 0:
            return torch.empty_like(part, device="cpu", pin_memory=True).copy_(part)
        return part.clone() if part.is_cpu else part.to("cpu")
    if isinstance(value, dict):
        known = into if isinstance(into, dict) else {}
        copied = {} if value.__class__ is dict else copy.copy(value)  # a Counter of a schedule stays one
        for key, item in value.items():
            copied[key] = host_copy(item, known.get(key))
        return copied
    if isinstance(value, (list, tuple)):
        return type(value)(host_copy(item) for item in value)
    return value


def alias(value: Any) -> Any:
    """Return a nested state with its own containers and the live tensors, fit to be written to a file at once.

    A tensor that is part of a larger storage is copied, as all of that would be written.
    """
    if isinstance(value, Tensor):
        part = local(value.detach())
        is_whole = part.layout != torch.strided or part.untyped_storage().nbytes() == part.nbytes
        return part if is_whole else part.clone()
    if isinstance(value, dict):
        return {key: alias(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(alias(item) for item in value)
    return value


def put_back(saved: Any, live: Any, param: Tensor) -> Any:
    """Return `saved` as live state of a parameter: into the live tensors where they fit, else as new ones."""
    if isinstance(saved, Tensor):
        part = local(live) if isinstance(live, Tensor) else None
        if part is not None and part.shape == saved.shape and part.dtype == saved.dtype:
            part.copy_(saved)
            return live
        device = part.device if part is not None else torch.device("cpu") if saved.ndim == 0 else param.device
        return spread_like(saved.to(device, copy=True), param.detach())
    if isinstance(saved, dict):
        lives = live if isinstance(live, dict) else {}
        return {key: put_back(item, lives.get(key), param) for key, item in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(put_back(item, None, param) for item in saved)
    return saved


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor of a nested state.

    Example:
        >>> [tensor.item() for tensor in tensors_in({"a": [torch.tensor(1)], "b": (2, torch.tensor(3))})]
        [1, 3]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
