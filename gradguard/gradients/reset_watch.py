"""Notices gradients that nobody reset between two steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class ResetWatch:
    """Notices gradients that were not reset between two steps, through one hook on one small parameter.

    A gradient that is only added to counts its version up by exactly one; zeroing it counts once more, and a fresh one
    starts again. The hook compares version numbers, so it reads no values.

    Attributes:
        window: counts up whenever gradients start afresh, so that a batch whose step was never taken can be told from
            the next.
        is_pending: a backward has come since the last step; taken for granted where there is nothing to watch.
        is_stale: the gradients still hold those of the step before.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._version: int | None = None
        self._is_reset = True
        self.is_stale = False
        self.window = 0
        trainable = [p for p in params if p.requires_grad and p.is_leaf and p.layout == torch.strided]
        self._param = min(trainable[-4:], key=torch.numel) if trainable else None
        self.is_pending = self._param is None
        self._handle = (
            self._param.register_post_accumulate_grad_hook(self._on_accumulate)  # type: ignore[no-untyped-call]
            if self._param is not None
            else None
        )

    def _on_accumulate(self, param: Tensor) -> None:
        grad = param.grad
        if grad is None or grad.layout != torch.strided:
            return
        version = grad._version
        self.is_pending = True
        if self._version is None or version != self._version + 1:
            self._is_reset, self.is_stale = True, False
            self.window += 1
        elif not self._is_reset:
            self.is_stale = True
        self._version = version

    def after_step(self) -> None:
        """Start watching for a reset: call when a step has used the gradients."""
        grad = self._param.grad if self._param is not None else None
        self._version = None if grad is None or grad.layout != torch.strided else grad._version
        self._is_reset = grad is None
        self.is_pending = self._param is None
        self.is_stale = False

    def close(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
