"""What goes with model and optimizer into a snapshot: schedulers, scalers, averaged models, random generators."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradguard.errors import AttachError
from gradguard.gradients.sharded import local
from gradguard.snapshots.random_state import random_state, set_random_state
from gradguard.snapshots.state_copy import host_copy, tensors_in


class Companions:
    """Saves and restores what the user handed over beside model and optimizer.

    Args:
        optimizer: with a scheduler among `also`, the learning rates and other options of its param groups are saved as
            well: a schedule goes on from them.
        also: {name: scheduler, GradScaler, averaged model or anything else with state_dict and load_state_dict}.
        has_random: the random generators of torch, numpy and Python are saved too.

    Raises:
        AttachError: something in `also` cannot be saved and restored.

    Attributes:
        not_restored: what could not be put back the last time, and why; "" when everything could.
    """

    def __init__(self, optimizer: Optimizer, also: Mapping[str, Any] | None = None, has_random: bool = False) -> None:
        self._optimizer = optimizer
        self._also = dict(also or {})
        self._has_random = has_random
        self.not_restored = ""
        for name, item in self._also.items():
            if not callable(getattr(item, "state_dict", None)) or not callable(getattr(item, "load_state_dict", None)):
                raise AttachError(
                    f"also[{name!r}] must have state_dict() and load_state_dict(), got {type(item).__name__}"
                )
            if item is optimizer:
                raise AttachError(f"also[{name!r}] is the optimizer itself, which is saved anyway")

    @property
    def has_schedule(self) -> bool:
        """Whether a learning-rate scheduler was handed over."""
        return any(isinstance(item, LRScheduler) for item in self._also.values())

    def live(self) -> dict[str, list[Tensor]]:
        """Return by name the floating tensors that are live in what was handed over."""
        return {
            name: [tensor.detach() for tensor in tensors_in(item.state_dict()) if tensor.is_floating_point()]
            for name, item in self._also.items()
        }

    def save(self, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a copy of everything; in the memory of `into`, which an earlier call returned, where it fits."""
        known = into if into is not None else {}
        saved: dict[str, Any] = {}
        if self._also:
            states = {name: item.state_dict() for name, item in self._also.items()}
            saved["also"] = host_copy(states, known.get("also"))
        if self.has_schedule:
            groups = self._optimizer.param_groups
            saved["options"] = [
                host_copy({key: value for key, value in group.items() if key != "params"}) for group in groups
            ]
        if self._has_random:
            saved["random"] = random_state()
        return saved

    @torch.no_grad()
    def restore(self, saved: dict[str, Any], keeps_schedule: bool = False) -> None:
        """Put everything back; what fails keeps nothing else from it, and `not_restored` says so.

        Args:
            saved: what `save` returned; names that it does not know are left alone.
            keeps_schedule: schedulers and the options of param groups are left as they are.
        """
        states = saved.get("also", {})
        failed = []
        for name, item in self._also.items():
            if name in states and not (keeps_schedule and isinstance(item, LRScheduler)):
                try:
                    _load(item, states[name])
                except Exception as error:
                    failed.append(f"also[{name!r}] could not be put back: {error!r}")
        self.not_restored = "; ".join(failed)
        if not keeps_schedule:
            for group, options in zip(self._optimizer.param_groups, saved.get("options", ()), strict=False):
                for key, value in options.items():
                    live = group.get(key)
                    group[key] = live.copy_(value) if isinstance(live, Tensor) else host_copy(value)
        if "random" in saved:
            set_random_state(saved["random"])


def _load(item: Any, state: dict[str, Any]) -> None:
    """Put one state back; into the very tensors of a module, which a rank may hold a part of."""
    live = item.state_dict() if isinstance(item, nn.Module) else {}
    if live and live.keys() == state.keys() and all(isinstance(value, Tensor) for value in live.values()):
        for name, tensor in live.items():
            local(tensor).copy_(state[name])
    else:
        item.load_state_dict(copy.deepcopy(state))
