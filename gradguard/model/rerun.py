"""The model's last batch once more, without a trace."""

from __future__ import annotations

import operator
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from gradguard.model.forward_inputs import ForwardPass
from gradguard.model.inert_hook import hooks_asleep
from gradguard.snapshots.random_state import torch_random_state


def rerun(model: nn.Module, call: ForwardPass) -> bool:
    """Call a model as it was called before, for whoever has put hooks on it.

    Buffers, random numbers and the attributes of its modules stay; of lists, dicts and sets among these what they hold
    does, not what is inside of that.

    Args:
        model: is run without gradients; the guard's own hooks do not see it.
        call: what it was given.

    Returns:
        Whether it drew torch's random numbers: then it was not the same pass once more.

    Raises:
        Exception: what the forward pass raises.
    """
    device = next((param.device.type for param in model.parameters()), "cpu")
    precision = torch.autocast(device) if call.was_autocast else nullcontext()
    with hooks_asleep(), torch.no_grad(), _untouched(model), precision:
        before = torch_random_state()
        model(*call.args, **call.kwargs)
        after = torch_random_state()
    return any(
        not torch.equal(one, other)
        for one, other in zip([before["cpu"], *before["cuda"]], [after["cpu"], *after["cuda"]], strict=False)
    )


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put buffers, random generators and plain attributes back afterwards."""
    modules = list(model.modules())
    held = [(vars(module), dict(vars(module))) for module in modules]
    held += [(module._buffers, dict(module._buffers)) for module in modules]
    own = [value for _, attributes in held[: len(modules)] for name, value in attributes.items() if name not in _TORCHS]
    held += [(value, value.copy()) for value in own if type(value) in (list, dict, set, deque)]
    generators = [(value, value.get_state()) for value in own if isinstance(value, torch.Generator)]
    buffers = [value for module in modules for value in module._buffers.values() if value is not None]
    values = [buffer.detach().clone() for buffer in buffers]
    python, numpy = random.getstate(), np.random.get_state()
    devices = {param.device for param in model.parameters() if param.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted({device.index or 0 for device in devices})):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in generators:
            generator.set_state(state)
        for container, copy in held:
            _refill(container, copy)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.data.copy_(value)


_TORCHS = frozenset(vars(nn.Module()))  # attributes of every module: its hooks, parameters and the like


def _refill(container: Any, copy: Any) -> None:
    """Let a container hold what its copy does; one that still does is left alone."""
    if len(container) == len(copy) and all(map(operator.is_, _items(container), _items(copy))):
        return
    container.clear()
    (container.update if isinstance(copy, (dict, set)) else container.extend)(copy)


def _items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]
