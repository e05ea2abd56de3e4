"""What the model was given last, and a way to run it on that once more without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradguard.inert_hook import InertHook, hooks_asleep


class LastInputs:
    """Keeps hold of the arguments of the model's last training forward; nothing is copied.

    Args:
        model: is hooked until `close`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._given: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
        self._handle = model.register_forward_pre_hook(InertHook(self._note), with_kwargs=True)

    @property
    def is_known(self) -> bool:
        """Whether there was a training forward."""
        return self._given is not None

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            self._given = args, kwargs

    def run(self) -> None:
        """Run the model on them again, for whoever has put hooks on it; buffers and random numbers stay as they were.

        Raises:
            Exception: what the forward pass raises, or that there was none.
        """
        if self._given is None:
            raise RuntimeError("the model has not been called in training mode yet")
        args, kwargs = self._given
        with hooks_asleep(), torch.no_grad(), _untouched(self._model):
            self._model(*args, **kwargs)

    def close(self) -> None:
        """Take the hook off and let go of what is held."""
        self._handle.remove()
        self._given = None


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put buffers and random generators back afterwards."""
    owners = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    saved = [None if buffer is None else buffer.detach().clone() for _, _, buffer in owners]
    devices = {param.device for param in model.parameters() if param.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted({device.index or 0 for device in devices})):
            yield
    finally:
        for (module, name, buffer), copy in zip(owners, saved, strict=True):
            module._buffers[name] = buffer
            if buffer is not None and copy is not None:
                buffer.data.copy_(copy)
