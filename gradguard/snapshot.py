"""Verified-finite copies of parameters, buffers and optimizer state, and the bit-exact way back to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.finite_check import FiniteCheck
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


PARAMETER, BUFFER = "parameter ", "buffer "  # begin the keys of a snapshot's tensors
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
        self._tensors = {key: host_copy(tensor) for key, tensor in live_tensors(model, optimizer).items()}
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
        for param, saved in zip(params, self._state, strict=False):
            if saved is None:
                optimizer.state.pop(param, None)
            else:
                state = put_back(saved, dict(optimizer.state.get(param, {})), param.device)
                optimizer.state[param].clear()
                optimizer.state[param].update(state)


def live_tensors(model: nn.Module, optimizer: Optimizer, is_foreign: bool = False) -> dict[str, Tensor]:
    """Return by name the model's parameters and buffers, then the optimizer's parameters that the model does not own.

    Args:
        model: gives its tensors.
        optimizer: gives its parameters.
        is_foreign: leave the model's own tensors out.
    """
    named: dict[str, Tensor] = {}
    if not is_foreign:
        named |= {PARAMETER + name: param.detach() for name, param in model.named_parameters()}
        named |= {BUFFER + name: buffer.detach() for name, buffer in model.named_buffers()}
    owned = {id(param) for param in model.parameters()}
    for index, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if id(param) not in owned:
                named[f"group {index}.{position}"] = param.detach()
    return named


def is_overlapping(tensor: Tensor) -> bool:
    """Return whether entries of a tensor share memory (it was expanded), so that it cannot be written to."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def set_buffer(model: nn.Module, name: str, saved: Tensor) -> None:
    """Put a buffer back as a new tensor, where its owner still has one of that name."""
    owner_name, _, leaf = name.rpartition(".")
    owner = dict(model.named_modules()).get(owner_name)
    live = owner._buffers.get(leaf) if owner is not None else None
    if owner is not None and live is not None and not (live.shape == saved.shape and torch.equal(live.cpu(), saved)):
        owner._buffers[leaf] = saved.to(live.device, copy=True)


class Snapshots:
    """The snapshots that `rollback` may use: the last confirmed one, and one that waits to be confirmed.

    A snapshot is only taken of a finite state, and counts only after `CONFIRM_AFTER` further steps without a finding: a
    fault that shows late would otherwise be saved as good.

    Args:
        model: what is saved.
        optimizer: what is saved.
        every: steps between snapshots; the first ones come after 10, 20, 30 steps, then after ever longer times.
        max_memory_share: none is taken that would need more than this share of the free memory.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        every: int,
        max_memory_share: float,
    ) -> None:
        self._finite_check = FiniteCheck(model, more=lambda: live_tensors(model, optimizer, is_foreign=True))
        self._finite_check.bad()  # what is infinite now is meant to be
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
        tensors = self._live()
        return sum(t.numel() * t.element_size() for t in tensors)

    def _live(self) -> list[Tensor]:
        live = live_tensors(self._model, self._optimizer)
        return [*live.values(), *tensors_in(dict(self._optimizer.state))]

    def _check(self) -> Sequence[str]:
        """Return what must not be saved: names of damaged tensors."""
        state = list(tensors_in(dict(self._optimizer.state)))
        return self._finite_check.bad() or ["the optimizer's state"] * len(nonfinite_tensors(state))

    def take(self, step: int, windows: dict[str, Any], is_confirmed: bool = False) -> bool:
        """Save the present state, unless it is not finite or memory is short; return whether it was saved.

        `refusal` says why it was not.
        """
        if self._pending is not None and not is_confirmed and step < self._pending.step + CONFIRM_AFTER:
            self.next_step = self._pending.step + CONFIRM_AFTER  # one that waits is not replaced, or none is confirmed
            return False
        self.next_step = step + min(self._every, max(10, step // 4))
        free = free_memory_bytes()
        needed = self.nbytes_needed()
        if free is not None and needed > self._max_memory_share * free:
            self.refusal = (
                f"a snapshot takes {needed / 1e6:,.0f} MB, more than {self._max_memory_share:.0%} of the "
                f"{free / 1e6:,.0f} MB that are free; raise snapshots.max_memory_share or drop rollback from the policy"
            )
            return False
        if bad := self._check():
            self.refusal = f"{bad[0]} is not finite"
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
        """Drop the waiting snapshot: something was found wrong before it was confirmed; another is taken soon."""
        if self._pending is not None:
            self.next_step = self._pending.step + 2 * CONFIRM_AFTER
            self._pending = None

    def restore(self, step: int) -> None:
        """Put the good snapshot back, if there is one; the state that it replaces is set aside if it is finite."""
        self._pending = None
        if self._good is not None:
            self._aside = None if self._check() else Snapshot(step, self._model, self._optimizer, {})
            self._good.restore(self._model, self._optimizer)

    def take_aside(self, step: int) -> Snapshot | None:
        """Hand over the state that the last rollback replaced, if that was at most `ASIDE_STEPS` steps ago."""
        aside, self._aside = self._aside, None
        return None if aside is None or step - aside.step > ASIDE_STEPS else aside

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
