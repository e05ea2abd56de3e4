"""What a model was called with last, until its step is judged: for the rare step that is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradguard.model.forward_inputs import ForwardPass
from gradguard.model.inert_hook import InertHook, are_hooks_asleep


_is_compiling, _is_autocast, _has_grad = (
    torch.compiler.is_compiling,
    torch.is_autocast_enabled,
    torch.is_grad_enabled,
)


class LastCall(InertHook):
    """A hook that holds on to the arguments of a model's last call, in training mode and with gradients.

    Nothing is copied. A batch is held from the forward pass until `forget`, just before torch's step: no longer than
    the backward pass needs it in most models, but also where the loop lets go of it (`model(x[i])`).

    Args:
        model: its own calls are seen; not those of modules inside of it.

    Attributes:
        num_passes: calls since `forget`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.num_passes = 0
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._was_autocast = False
        self._device = next((param.device.type for param in model.parameters()), "cpu")
        self._handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, *args: Any) -> None:
        """Note a call; all on one level, as it is made at every step."""
        if _is_compiling() or not (args[0].training and _has_grad()) or are_hooks_asleep():
            return
        _, self._args, self._kwargs = args
        self._was_autocast = _is_autocast(self._device)
        self.num_passes += 1

    @property
    def call(self) -> ForwardPass | None:
        """The last call since `forget`, None without one."""
        return ForwardPass(self._args, self._kwargs, {}, self._was_autocast) if self.num_passes else None

    def forget(self) -> None:
        """Let go of the batch: its step has been judged."""
        if self.num_passes:
            self.num_passes, self._args, self._kwargs = 0, (), {}

    def close(self) -> None:
        """Take the hook off and let go of the batch."""
        self._handle.remove()
        self.forget()
