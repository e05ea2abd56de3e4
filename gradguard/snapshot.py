"""Verified-finite copies of parameters, buffers and optimizer state, and the bit-exact way back to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.functional import nonfinite_tensors
from gradguard.plain import from_plain, to_plain


CONFIRM_AFTER = (
    10  # quiet steps after which a snapshot counts as taken before a fault, chosen over faults that show late
)


def host_copy(value: Any) -> Any:
    """Return a copy of a nested optimizer state with every tensor in host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: host_copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(host_copy(item) for item in value)
    return value


def put_back(saved: Any, live: Any, device: torch.device) -> Any:
    """Return `saved` as live state: into the live tensors where they fit, as new ones where they do not."""
    if isinstance(saved, Tensor):
        if isinstance(live, Tensor) and live.shape == saved.shape and live.dtype == saved.dtype:
            live.copy_(saved)
            return live
        target = live.device if isinstance(live, Tensor) else torch.device("cpu") if saved.ndim == 0 else device
        return saved.to(target, copy=True)
    if isinstance(saved, dict):
        lives = live if isinstance(live, dict) else {}
        return {key: put_back(item, lives.get(key), device) for key, item in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(put_back(item, None, device) for item in saved)
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


def free_memory_bytes() -> int | None:
    """Return the host memory that is free now, None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


ASIDE_STEPS = 50  # steps for which the state that a rollback replaced can be brought back


class Snapshot:
    """One state of model and optimizer, in host memory.

    Args:
        step: optimizer steps that had been applied or skipped when it was taken.
        model: its parameters and buffers are copied.
        optimizer: its per-parameter state, and parameters that the model does not own, are copied. Learning rates and
            other options of the param groups are not: they belong to the schedule, which goes on.
        windows: the guard's rolling statistics at that step.
    """

    def __init__(self, step: int, model: nn.Module, optimizer: Optimizer, windows: dict[str, Any]) -> None:
        self.step = step
        self.windows = windows
        self._tensors = [host_copy(tensor) for tensor in live_tensors(model, optimizer)]
        self._state = [
            host_copy(dict(optimizer.state[param])) if param in optimizer.state else None
            for group in optimizer.param_groups
            for param in group["params"]
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that it holds; the tensors are shared, not copied."""
        return {"step": self.step, "windows": to_plain(self.windows), "tensors": self._tensors, "state": self._state}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Snapshot:
        """Return the snapshot that `state_dict` described."""
        snapshot = cls.__new__(cls)
        snapshot.step, snapshot.windows = int(state["step"]), from_plain(state["windows"])
        snapshot._tensors, snapshot._state = list(state["tensors"]), list(state["state"])
        return snapshot

    @torch.no_grad()
    def restore(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Put every tensor back, bit for bit; state that did not exist then is removed."""
        live = live_tensors(model, optimizer)
        for tensor, saved in zip(live, self._tensors, strict=False):
            tensor.copy_(saved)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for param, saved in zip(params, self._state, strict=False):
            if saved is None:
                optimizer.state.pop(param, None)
            else:
                state = put_back(saved, dict(optimizer.state.get(param, {})), param.device)
                optimizer.state[param].clear()
                optimizer.state[param].update(state)


def live_tensors(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Return the model's parameters and buffers, then the optimizer's parameters that the model does not own."""
    owned: dict[int, Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        owned.setdefault(id(tensor), tensor.detach())
    for group in optimizer.param_groups:
        for param in group["params"]:
            owned.setdefault(id(param), param.detach())
    return list(owned.values())


class Snapshots:
    """The snapshots that `rollback` may use: the last confirmed one, and one that waits to be confirmed.

    A snapshot is only taken of a finite state, and counts only after `CONFIRM_AFTER` further steps without a finding: a
    fault that shows late would otherwise be saved as good.

    Args:
        model: what is saved.
        optimizer: what is saved.
        every: steps between snapshots; the first ones come after 10, 20, 40, ... steps.
        max_memory_share: none is taken that would need more than this share of the free memory.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, every: int, max_memory_share: float) -> None:
        self._model = model
        self._optimizer = optimizer
        self._every = every
        self._max_memory_share = max_memory_share
        self._good: Snapshot | None = None
        self._pending: Snapshot | None = None
        self._aside: Snapshot | None = None
        self.next_step = 0
        self.refusal = ""

    @property
    def good(self) -> Snapshot | None:
        """The snapshot that a rollback restores, None when there is none."""
        return self._good

    def nbytes_needed(self) -> int:
        """Return what one snapshot takes now, bytes; optimizer state that does not exist yet is not in it."""
        tensors = (*live_tensors(self._model, self._optimizer), *tensors_in(dict(self._optimizer.state)))
        return sum(t.numel() * t.element_size() for t in tensors)

    def take(self, step: int, windows: dict[str, Any], is_confirmed: bool = False) -> bool:
        """Save the present state, unless it is not finite or memory is short; return whether it was saved.

        `refusal` says why it was not.
        """
        self.next_step = step + min(self._every, max(10, step))
        free = free_memory_bytes()
        needed = self.nbytes_needed()
        if free is not None and needed > self._max_memory_share * free:
            self.refusal = (
                f"a snapshot takes {needed / 1e6:,.0f} MB, more than {self._max_memory_share:.0%} of the "
                f"{free / 1e6:,.0f} MB that are free; raise snapshots.max_memory_share or drop rollback from the policy"
            )
            return False
        state = (*live_tensors(self._model, self._optimizer), *tensors_in(dict(self._optimizer.state)))
        if bad := nonfinite_tensors(state):
            self.refusal = f"{len(bad)} tensors of model and optimizer are not finite"
            return False
        snapshot = Snapshot(step, self._model, self._optimizer, windows)
        if is_confirmed:
            self._good = snapshot
        else:
            self._pending = snapshot
        return True

    def confirm(self, step: int) -> None:
        """Count the waiting snapshot as good if it has been quiet since."""
        if self._pending is not None and step >= self._pending.step + CONFIRM_AFTER:
            self._good, self._pending, self._aside = self._pending, None, None

    def next_due(self, step: int) -> int:
        """Return the next step at which a snapshot is to be taken or confirmed."""
        waiting = self._pending.step + CONFIRM_AFTER if self._pending is not None else self.next_step
        return max(step + 1, min(self.next_step, waiting))

    def distrust(self) -> None:
        """Drop the waiting snapshot: something was found wrong before it was confirmed."""
        self._pending = None

    def restore(self, step: int) -> None:
        """Put the good snapshot back, if there is one; the state that it replaces is set aside if it is finite."""
        self._pending = None
        if self._good is not None:
            state = (*live_tensors(self._model, self._optimizer), *tensors_in(dict(self._optimizer.state)))
            self._aside = None if nonfinite_tensors(state) else Snapshot(step, self._model, self._optimizer, {})
            self._good.restore(self._model, self._optimizer)

    def bring_back(self, step: int) -> Snapshot | None:
        """Undo the last rollback, if it was at most `ASIDE_STEPS` steps ago, and return the state brought back."""
        aside, self._aside = self._aside, None
        if aside is None or step - aside.step > ASIDE_STEPS:
            return None
        aside.restore(self._model, self._optimizer)
        return aside

    def state_dict(self) -> dict[str, Any]:
        """Return both snapshots and when the next one is due."""
        return {
            "good": self._good.state_dict() if self._good is not None else None,
            "pending": self._pending.state_dict() if self._pending is not None else None,
            "aside": self._aside.state_dict() if self._aside is not None else None,
            "next_step": self.next_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put saved snapshots in place of the present ones."""
        self._good = Snapshot.from_state_dict(state["good"]) if state["good"] is not None else None
        self._pending = Snapshot.from_state_dict(state["pending"]) if state["pending"] is not None else None
        self._aside = Snapshot.from_state_dict(state["aside"]) if state["aside"] is not None else None
        self.next_step = int(state["next_step"])
