"""What goes into a model and what comes out of it, in any of the containers that models take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


OUTPUT_NAMES = ("logits", "out", "output", "outputs", "prediction", "predictions", "pred", "preds", "y")


def is_readable(value: object) -> bool:
    """Return whether a value is a floating tensor whose entries can be read here: dense, not empty, no wrapper.

    Tensors of functional transforms (vmap, grad), of tracing, and those that are spread over ranks are wrappers.
    """
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and not value.is_nested
        and value.device.type != "meta"
        and value.numel() > 0
        and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def named_values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a container holds, one level deep, with names; anything else yields itself.

    Example:
        >>> list(named_values({"a": 1, "b": 2}, "batch"))
        [('batch.a', 1), ('batch.b', 2)]
    """
    parts: Any
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value._fields, value, strict=True)
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        parts = ((key, getattr(value, key)) for key in fields if hasattr(value, key))  # one may not be filled in
    else:
        yield name, value
        return
    for key, part in parts:
        yield (f"{name}.{key}" if name else str(key)), part


def input_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the floating tensors among a model's arguments, by position or name."""
    given = [(str(i), arg) for i, arg in enumerate(args)] + list(kwargs.items())
    return {
        name: value
        for key, argument in given
        for name, value in named_values(argument, key)
        if is_readable(value) and value.ndim > 0
    }


def output_tensor(output: Any) -> Tensor | None:
    """Return the tensor of a model's output that holds its predictions, None where there is none.

    It is the one with a name such as "logits", or else the first floating one that has a dimension for the samples.

    Example:
        >>> output_tensor({"loss": torch.zeros(()), "logits": torch.zeros(8, 3)}).shape
        torch.Size([8, 3])
    """
    tensors: dict[str, Tensor] = {
        n: value for n, value in named_values(output) if is_readable(value) and value.ndim > 0
    }
    for name in OUTPUT_NAMES:
        if name in tensors:
            return tensors[name]
    return next(iter(tensors.values()), None)
