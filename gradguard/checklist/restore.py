"""Everything that running a training may change, remembered, and the bit-exact way back."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradguard.model.inert_hook import hooks_asleep


CONTAINERS = (list, dict, set)


class Remembered:
    """A context that leaves parameters, gradients, modules and random generators as it found them.

    What a module keeps in attributes (a counter, a cache, the state of a recurrent net) is put back too, lists, dicts
    and sets one level deep. Works on the model itself: no copy of it is needed, whatever it is made of.

    Args:
        modules: the model, and the loss function where it is a module.
        parameters: further parameters, such as those that only the optimizer has.
    """

    def __init__(self, modules: Iterable[nn.Module], parameters: Iterable[Tensor]) -> None:
        self._modules = {id(inner): _Module(inner) for module in modules for inner in module.modules()}
        everyone = [p for kept in self._modules.values() for p in kept.parameters()] + list(parameters)
        self._parameters = [_Parameter(parameter) for parameter in {id(p): p for p in everyone}.values()]
        self._random = RandomState()

    def rewind(self) -> None:
        """Put back all but the parameters: the next run draws the same random numbers and sees the same buffers."""
        for module in self._modules.values():
            module.put_back()
        self._random.put_back()

    def reset_parameters(self) -> None:
        """Put the parameters' values back."""
        for parameter in self._parameters:
            parameter.put_back_value()

    def __enter__(self) -> Remembered:
        self._sleep = hooks_asleep()
        self._sleep.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sleep.__exit__(None, None, None)
        self.reset_parameters()
        for parameter in self._parameters:
            parameter.put_back_rest()
        self.rewind()


class _Parameter:
    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._memory, self._value = parameter.data, parameter.detach().clone()
        self._grad, self._is_trained = parameter.grad, parameter.requires_grad

    def put_back_value(self) -> None:
        if self._parameter.data_ptr() != self._memory.data_ptr():
            self._parameter.data = self._memory
        self._memory.copy_(self._value)

    def put_back_rest(self) -> None:
        self._parameter.requires_grad_(self._is_trained)
        self._parameter.grad = self._grad


class _Module:
    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = dict(module.__dict__)
        self._containers = [(item, item.copy()) for item in self._attributes.values() if isinstance(item, CONTAINERS)]
        tensors = [*module._buffers.values(), *self._attributes.values()]
        self._tensors = [
            (item, item.data, item.detach().clone())
            for item in tensors
            if isinstance(item, Tensor) and not isinstance(item, nn.Parameter)
        ]

    def parameters(self) -> Iterable[Tensor]:
        return [p for p in self._module._parameters.values() if p is not None]

    def put_back(self) -> None:
        self._module.__dict__.clear()
        self._module.__dict__.update(self._attributes)
        for live, before in self._containers:
            _refill(live, before)
        for tensor, memory, value in self._tensors:
            if tensor.data_ptr() != memory.data_ptr():
                tensor.data = memory
            if not torch.equal(memory, value):
                memory.copy_(value)


def _refill(live: Any, before: Any) -> None:
    if live is before or (type(live) is list and len(live) == len(before) and all(map(_is_same, live, before))):
        return
    live.clear()
    live.extend(before) if isinstance(live, list) else live.update(before)


def _is_same(one: object, other: object) -> bool:
    return one is other


class RandomState:
    """Of Python, NumPy, torch on the host and torch on every CUDA device that is in use."""

    def __init__(self) -> None:
        self._python, self._numpy, self._host = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        """Set all of them as they were."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        for index, state in enumerate(self._cuda):
            torch.cuda.set_rng_state(state, index)
