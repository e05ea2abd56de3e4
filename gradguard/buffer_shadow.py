"""Copies of the model's buffers as the last accepted step left them, so that a skipped batch leaves no trace in BatchNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BufferShadow:
    """Keeps one copy of every buffer and refreshes only those that were written to.

    A buffer's version number tells whether it was written to; one that was never written to costs no copy after the
    first. A buffer that was replaced by another tensor counts as written to.

    Args:
        model: the buffers' owner, read afresh when buffers are added.
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots: list[tuple[dict[str, Tensor | None], str]] = []
        self._copies: list[Tensor] = []
        self._versions: list[tuple[int, int]] = []
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self._slots.append((module._buffers, name))
                    self._copies.append(buffer.detach().clone())
                    self._versions.append((id(buffer), buffer._version))

    def __len__(self) -> int:
        return len(self._slots)

    def nbytes(self) -> int:
        """Return the memory that the copies take, bytes."""
        return sum(copy.numel() * copy.element_size() for copy in self._copies)

    def _written(self) -> list[tuple[int, Tensor]]:
        versions = self._versions
        found = []
        for i, (owner, name) in enumerate(self._slots):
            buffer = owner.get(name)
            if buffer is not None and versions[i] != (id(buffer), buffer._version):
                found.append((i, buffer))
        return found

    @torch.no_grad()
    def accept(self) -> None:
        """Take the buffers' present values as good: call after an applied step."""
        for i, buffer in self._written():
            copy = self._copies[i]
            if copy.shape == buffer.shape and copy.dtype == buffer.dtype and copy.device == buffer.device:
                copy.copy_(buffer)
            else:
                self._copies[i] = buffer.detach().clone()
            self._versions[i] = (id(buffer), buffer._version)

    @torch.no_grad()
    def restore(self) -> int:
        """Put the accepted values back; return how many buffers had been written to since."""
        written = self._written()
        for i, buffer in written:
            copy = self._copies[i]
            if copy.shape == buffer.shape:
                buffer.copy_(copy)
                self._versions[i] = (id(buffer), buffer._version)
            else:
                fresh = copy.clone()
                owner, name = self._slots[i]
                owner[name] = fresh
                self._versions[i] = (id(fresh), fresh._version)
        return len(written)
