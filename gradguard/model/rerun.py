"""The model's last batch once more, without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from gradguard.model.forward_inputs import ForwardPass
from gradguard.model.inert_hook import hooks_asleep


def rerun(model: nn.Module, call: ForwardPass) -> None:
    """Call a model as it was called before, for whoever has put hooks on it; buffers and random numbers stay.

    Args:
        model: is run without gradients; the guard's own hooks do not see it.
        call: what it was given.

    Raises:
        Exception: what the forward pass raises.
    """
    with hooks_asleep(), torch.no_grad(), _untouched(model):
        model(*call.args, **call.kwargs)


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
