"""Copies of the model's buffers as the last accepted step left them: a skipped batch leaves no trace in BatchNorm."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gradguard.functional import is_overlapping, nonfinite_tensors


SMALL = 65536  # entries of a module's buffers up to which they are copied at every step


class _Owner:
    """One module with buffers: the live dict, the copies, and the versions at the time of the copy."""

    def __init__(self, module: nn.Module) -> None:
        self.live = module._buffers
        self.names = [name for name, buffer in module._buffers.items() if buffer is not None]
        self.copies = [module._buffers[name].detach().clone() for name in self.names]  # type: ignore[union-attr]
        # Normalisation kernels, and writes through `.data`, do not count a tensor's version up: small buffers are
        # looked at whatever it says.
        self.is_norm = isinstance(module, _NormBase)
        self.is_silent = self.is_norm or sum(map(torch.numel, self.copies)) <= SMALL
        self.versions = self.read_versions()

    def read_versions(self) -> list[int]:
        return [-1 if (buffer := self.live.get(name)) is None else buffer._version + id(buffer) for name in self.names]


_SHADOWS: WeakKeyDictionary[nn.Module, BufferShadow] = WeakKeyDictionary()


class BufferShadow:
    """Keeps one copy of every buffer and refreshes only those of modules that wrote to one.

    A buffer's version number tells whether it was written to or replaced; a module whose buffers were never touched (an
    attention mask, a table of positions) costs no copy after the first.

    Args:
        model: the buffers' owner.
    """

    def __init__(self, model: nn.Module) -> None:
        self.read(model)

    def read(self, model: nn.Module) -> None:
        """Copy the buffers that the model has now, as they are."""
        self._owners = [_Owner(module) for module in model.modules() if module._buffers]
        self._owners = [owner for owner in self._owners if owner.names]

    @classmethod
    def of(cls, model: nn.Module) -> BufferShadow:
        """Return the shadow of a model, the same for all guards that are given this model.

        A GAN may be one module with two optimizers: what one guard accepted, the other must not undo.
        """
        if model in _SHADOWS:
            _SHADOWS[model].read(model)
        else:
            _SHADOWS[model] = cls(model)
        return _SHADOWS[model]

    def is_finite(self) -> bool:
        """Return whether no live buffer holds a NaN or an infinity, but for those whose accepted values do too."""
        pairs = [
            (buffer.detach(), owner.copies[i])
            for owner in self._owners
            for i, name in enumerate(owner.names)
            if (buffer := owner.live.get(name)) is not None
        ]
        bad = set(nonfinite_tensors([live for live, _ in pairs]))
        return not bad - set(nonfinite_tensors([copy for _, copy in pairs]))

    def __len__(self) -> int:
        return sum(len(owner.names) for owner in self._owners)

    @torch.no_grad()
    def accept(self, unless: Tensor | None = None) -> None:
        """Take the buffers' present values as good: call after an applied step.

        Args:
            unless: () bool of a verdict that the device took; where it is true the buffers get the accepted values back
                instead, without the host knowing.
        """
        into: list[Tensor] = []
        source: list[Tensor] = []
        may_go_back: list[bool] = []
        written = []
        for owner in self._owners:
            versions = owner.read_versions()
            is_written = versions != owner.versions or owner.is_norm
            if not owner.is_silent and versions == owner.versions:
                continue
            owner.versions = versions
            written.append(owner)
            for i, name in enumerate(owner.names):
                buffer, copy = owner.live.get(name), owner.copies[i]
                if buffer is None:
                    continue
                if buffer.shape == copy.shape and buffer.dtype == copy.dtype and buffer.device == copy.device:
                    into.append(copy)
                    source.append(buffer)
                    may_go_back.append(is_written)
                else:
                    owner.copies[i] = buffer.detach().clone()
        if unless is not None and into:
            chosen = _choose(unless, into, source)
            back = [i for i, may in enumerate(may_go_back) if may and not is_overlapping(source[i])]
            if back:
                torch._foreach_copy_([source[i] for i in back], [chosen[i] for i in back])
            source = chosen
            for owner in written:
                owner.versions = owner.read_versions()
        if into:
            torch._foreach_copy_(into, source)

    @torch.no_grad()
    def restore(self) -> int:
        """Put the accepted values back; return how many buffers differ from them by then."""
        restored = 0
        for owner in self._owners:
            if not owner.is_silent and owner.read_versions() == owner.versions:
                continue
            for i, name in enumerate(owner.names):
                buffer, copy = owner.live.get(name), owner.copies[i]
                if buffer is None or buffer.shape != copy.shape:
                    owner.live[name] = copy.clone()
                    restored += 1
                elif not torch.equal(buffer, copy):
                    buffer.copy_(copy)
                    restored += 1
            owner.versions = owner.read_versions()
        return restored


def _choose(condition: Tensor, kept: list[Tensor], new: list[Tensor]) -> list[Tensor]:
    """Return `kept` where a () bool holds, else `new`, with a few kernels for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(new):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    chosen = list(new)
    for (device, _), members in groups.items():
        old, fresh = (torch.cat([side[i].reshape(-1) for i in members]) for side in (kept, new))
        flat = torch.where(condition.to(device, non_blocking=True), old, fresh)
        parts = torch.split(flat, [new[i].numel() for i in members])
        for i, part in zip(members, parts, strict=True):
            chosen[i] = part.view(new[i].shape)
    return chosen
