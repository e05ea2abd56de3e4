"""One copy of parameters, buffers and optimizer state, and the bit-exact way back to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.functional import is_overlapping
from gradguard.module_walk import named_tensors
from gradguard.plain import from_plain, to_plain
from gradguard.sharded import local, spread_like


PARAMETER, BUFFER = "parameter ", "buffer "  # begin the keys of a snapshot's tensors


def host_copy(value: Any, into: Any = None) -> Any:
    """Return a copy of a nested state with every tensor in host memory: in that of `into`, where it fits.

    Memory that was written to before costs a tenth of fresh pages.
    """
    if isinstance(value, Tensor):
        part = local(value.detach() if value.requires_grad else value)
        if isinstance(into, Tensor) and into.shape == part.shape and into.dtype == part.dtype:
            return into.copy_(part)
        return part.clone() if part.is_cpu else part.to("cpu")
    if isinstance(value, dict):
        known = into if isinstance(into, dict) else {}
        return {key: host_copy(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(host_copy(item) for item in value)
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
    """Yield every tensor of a nested state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


class Snapshot:
    """One state of model and optimizer, in host memory.

    Args:
        step: optimizer steps that had been applied or skipped when it was taken.
        model: its parameters and buffers are copied.
        optimizer: its per-parameter state, and parameters that the model does not own, are copied. Learning rates and
            other options of the param groups are not: they belong to the schedule, which goes on.
        windows: the guard's rolling statistics at that step.
        live: what `live_tensors` returns, when that is known already.
        spare: one that nobody needs any more, whose memory this one takes.

    Attributes:
        is_shared: someone else may hold its tensors, so that its memory is not to be taken.
    """

    def __init__(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        windows: dict[str, Any],
        live: dict[str, Tensor] | None = None,
        spare: Snapshot | None = None,
    ) -> None:
        self.step = step
        self.windows = windows
        self.is_shared = False
        live = live_tensors(model, optimizer) if live is None else live
        self._tensors: dict[str, Tensor] = host_copy(live, spare._tensors if spare is not None else None)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        known = spare._state if spare is not None else []
        self._state: list[dict[str, Any] | None] = [
            host_copy(dict(optimizer.state[param]), old) if param in optimizer.state else None
            for param, old in zip_longest(params, known[: len(params)])
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that it holds; the tensors are shared, not copied."""
        self.is_shared = True
        return {"step": self.step, "windows": to_plain(self.windows), "tensors": self._tensors, "state": self._state}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Snapshot:
        """Return the snapshot that `state_dict` described."""
        snapshot = cls.__new__(cls)
        snapshot.is_shared = True
        snapshot.step, snapshot.windows = int(state["step"]), from_plain(state["windows"])
        snapshot._tensors, snapshot._state = dict(state["tensors"]), list(state["state"])
        return snapshot

    @torch.no_grad()
    def restore(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Put every tensor back, bit for bit; state that did not exist then is removed."""
        live = live_tensors(model, optimizer)
        for key, saved in self._tensors.items():
            tensor = live.get(key)
            if tensor is not None and tensor.shape == saved.shape and not is_overlapping(tensor):
                tensor.copy_(saved)
            elif key.startswith(BUFFER):
                set_buffer(model, key.removeprefix(BUFFER), saved)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for param, known in zip(params, self._state, strict=False):
            if known is None:
                optimizer.state.pop(param, None)
            else:
                state = put_back(known, dict(optimizer.state.get(param, {})), param)
                optimizer.state[param].clear()
                optimizer.state[param].update(state)


def live_tensors(model: nn.Module, optimizer: Optimizer, is_foreign: bool = False) -> dict[str, Tensor]:
    """Return by name the model's parameters and buffers, then the optimizer's parameters that the model does not own.

    Args:
        model: gives its tensors.
        optimizer: gives its parameters.
        is_foreign: leave the model's own tensors out.
    """
    parameters, buffers = named_tensors(model)
    named: dict[str, Tensor] = {}
    if not is_foreign:
        named |= {PARAMETER + name: local(param.detach()) for name, param in parameters}
        named |= {BUFFER + name: local(buffer.detach()) for name, buffer in buffers}
    owned = {id(param) for _, param in parameters}
    for index, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if id(param) not in owned:
                named[f"group {index}.{position}"] = local(param.detach())
    return named


def set_buffer(model: nn.Module, name: str, saved: Tensor) -> None:
    """Put a buffer back as a new tensor, where its owner still has one of that name."""
    owner_name, _, leaf = name.rpartition(".")
    owner = dict(model.named_modules()).get(owner_name)
    live = owner._buffers.get(leaf) if owner is not None else None
    if owner is not None and live is not None and not (live.shape == saved.shape and torch.equal(live.cpu(), saved)):
        owner._buffers[leaf] = saved.to(live.device, copy=True)
