"""One copy of parameters, buffers and optimizer state, and the bit-exact way back to it."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.functional import is_overlapping
from gradguard.gradients.sharded import local
from gradguard.model.module_walk import named_tensors
from gradguard.snapshots.companions import Companions
from gradguard.snapshots.plain import from_plain, to_plain
from gradguard.snapshots.state_copy import alias, host_copy, put_back


PARAMETER, BUFFER = "parameter ", "buffer "  # begin the keys of a snapshot's tensors


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
        companions: what else is saved, None for nothing.
        is_copied: without it the snapshot holds the live tensors: fit for `state_dict`, to be written at once.

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
        companions: Companions | None = None,
        is_copied: bool = True,
    ) -> None:
        self.step = step
        self.windows = windows
        self.is_shared = False
        live = live_tensors(model, optimizer) if live is None else live
        params = [param for group in optimizer.param_groups for param in group["params"]]
        state = [dict(optimizer.state[param]) if param in optimizer.state else None for param in params]
        self._tensors: dict[str, Tensor]
        self._state: list[dict[str, Any] | None]
        if is_copied:
            known = spare._state if spare is not None else []
            self._tensors = host_copy(live, spare._tensors if spare is not None else None)
            self._state = [host_copy(now, old) for now, old in zip_longest(state, known[: len(state)])]
        else:
            self._tensors, self._state = alias(live), alias(state)
        known_also = spare._also if spare is not None else None
        self._also: dict[str, Any] = companions.save(known_also) if companions is not None else {}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that it holds; the tensors are shared, not copied."""
        self.is_shared = True
        return {
            "step": self.step,
            "windows": to_plain(self.windows),
            "tensors": self._tensors,
            "state": self._state,
            "also": self._also,
        }

    def read(self) -> Snapshot:
        """Return itself; one that is in a file is read from there."""
        return self

    def let_go(self) -> None:
        """Nobody needs it any more; one that is in a file removes that."""

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Snapshot:
        """Return the snapshot that `state_dict` described."""
        snapshot = cls.__new__(cls)
        snapshot.is_shared = True
        snapshot.step, snapshot.windows = int(state["step"]), from_plain(state["windows"])
        snapshot._tensors, snapshot._state = dict(state["tensors"]), list(state["state"])
        snapshot._also = dict(state["also"])
        return snapshot

    @torch.no_grad()
    def restore(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        companions: Companions | None = None,
        keeps_schedule: bool = False,
    ) -> None:
        """Put every tensor back, bit for bit; state that did not exist then is removed.

        Args:
            model: as it is now.
            optimizer: likewise; without a scheduler among the companions its learning rates stay as they are.
            companions: what else is put back, None for nothing.
            keeps_schedule: see `Companions.restore`.
        """
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
        if companions is not None:
            companions.restore(self._also, keeps_schedule)


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
