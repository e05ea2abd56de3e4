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

    def restore(self, i: int) -> bool:
        """Put the accepted value of one buffer back; return whether it differed."""
        buffer, copy = self.live.get(self.names[i]), self.copies[i]
        if buffer is not None and buffer.shape == copy.shape and torch.equal(buffer, copy):
            return False
        if buffer is None or buffer.shape != copy.shape or is_overlapping(buffer):
            self.live[self.names[i]] = copy.clone()
        else:
            buffer.data.copy_(copy)  # as in `accept`
        return True


class _Usual:
    """What there is to copy when every buffer is the tensor that it was and no large one was written to."""

    def __init__(self, owners: list[_Owner]) -> None:
        silent = [(owner, i) for owner in owners if owner.is_silent for i in range(len(owner.names))]
        self._others = [owner for owner in owners if not owner.is_silent]
        self._live = [(owner.live, name := owner.names[i], owner.live.get(name)) for owner, i in silent]
        self._source = [buffer for _, _, buffer in self._live if buffer is not None]
        self._shapes = [buffer.shape for buffer in self._source]
        self._into = [owner.copies[i] for owner, i in silent if owner.live.get(owner.names[i]) is not None]

    def copy(self) -> bool:
        """Copy; return False, with nothing done, when this is another kind of step."""
        for live, name, buffer in self._live:
            if live.get(name) is not buffer:
                return False
        if [buffer.shape for buffer in self._source] != self._shapes:
            return False
        for owner in self._others:
            if owner.read_versions() != owner.versions:
                return False
        if self._into:
            torch._foreach_copy_(self._into, self._source)
        return True


Place = tuple[_Owner, int]
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
        self._usual: _Usual | None = None

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

    def copies(self) -> dict[int, Tensor]:
        """Return the accepted value of every buffer by the id of the tensor that is in its place now."""
        return {
            id(buffer): owner.copies[i]
            for owner in self._owners
            for i, name in enumerate(owner.names)
            if (buffer := owner.live.get(name)) is not None
        }

    def __len__(self) -> int:
        return sum(len(owner.names) for owner in self._owners)

    @torch.no_grad()
    def accept(self, unless: Tensor | None = None) -> list[Place]:
        """Take the buffers' present values as good: call after an applied step.

        Args:
            unless: () bool of a verdict that the device took; where it is true the buffers get the accepted values back
                instead, without the host knowing.

        Returns:
            Where the device could not have put a value back, for `restore_at`: buffers that nobody was seen to write
            to, or that cannot be written to.
        """
        if unless is None and self._usual is not None and self._usual.copy():
            return []
        into: list[Tensor] = []
        source: list[Tensor] = []
        may_go_back: list[bool] = []
        places: list[Place] = []
        for owner in self._owners:
            versions = owner.read_versions()
            before, owner.versions = owner.versions, versions
            if not owner.is_silent and versions == before:
                continue
            for i, name in enumerate(owner.names):
                buffer, copy = owner.live.get(name), owner.copies[i]
                if buffer is None:
                    continue
                if buffer.shape == copy.shape and buffer.dtype == copy.dtype and buffer.device == copy.device:
                    into.append(copy)
                    source.append(buffer)
                    is_written = owner.is_norm or versions[i] != before[i]
                    may_go_back.append(is_written and not is_overlapping(buffer))
                    places.append((owner, i))
                else:
                    owner.copies[i] = buffer.detach().clone()
        if unless is not None and into:
            chosen = _choose(unless, into, source)
            back = [i for i, may in enumerate(may_go_back) if may]
            if back:  # through `.data`, as normalisation kernels do: another graph may hold the version that is there
                torch._foreach_copy_([source[i].data for i in back], [chosen[i] for i in back])
            source = chosen
        if into:
            torch._foreach_copy_(into, source)
        if unless is None:
            self._usual = _Usual(self._owners)
        return [place for place, may in zip(places, may_go_back, strict=True) if not may]

    @torch.no_grad()
    def restore(self) -> int:
        """Put the accepted values back; return how many buffers differ from them by then."""
        restored = 0
        for owner in self._owners:
            if owner.is_silent or owner.read_versions() != owner.versions:
                restored += sum([owner.restore(i) for i in range(len(owner.names))])
                owner.versions = owner.read_versions()
        return restored

    @torch.no_grad()
    def restore_at(self, places: list[Place]) -> None:
        """Put the accepted values back in these places alone; what a later forward wrote there is lost."""
        for owner, i in places:
            owner.restore(i)
            owner.versions = owner.read_versions()


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
