"""The forms that a batch may have, and how the model and the loss are called with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradguard.errors import UsageError


LossFunction = Callable[..., Any]
FORMS = (
    "(inputs, targets), where inputs are a tensor for model(inputs), a tuple for model(*inputs) or a dict for "
    "model(**inputs); or a dict for model(**batch), with loss_fn(output, batch), or loss_fn=None for a model that "
    "returns its loss as output.loss"
)


class Batch:
    """A batch of a known form.

    Args:
        batch: as the user passed it; its tensors are never written to, every call gets copies.
        loss_fn: as the user passed it.

    Raises:
        UsageError: any other form; says what was passed and which forms there are.
    """

    def __init__(self, batch: Any, loss_fn: LossFunction | None) -> None:
        if loss_fn is not None and not callable(loss_fn):
            raise UsageError(f"loss_fn must be a function of (output, targets), got {type(loss_fn).__name__}")
        self._batch, self.loss_fn = batch, loss_fn
        self.is_mapping = isinstance(batch, Mapping)
        if self.is_mapping:
            self.inputs, self.targets = dict(batch), None
        elif isinstance(batch, (tuple, list)) and len(batch) == 2:
            self.inputs, self.targets = batch
            if loss_fn is None:
                raise UsageError(
                    "loss_fn=None needs a batch that is a dict and a model that returns output.loss; for a batch of "
                    "(inputs, targets) pass loss_fn, a function of (output, targets)"
                )
        else:
            raise UsageError(f"batch must be {FORMS}; got {_describe(batch)}{_hint(batch)}")
        if not any(True for _ in tensors_of(self.inputs)):
            raise UsageError(f"the batch holds no input tensor, got {_describe(self.inputs)}; expected: {FORMS}")

    def output(self, model: nn.Module, inputs: Any = None) -> Any:
        """Return what the model makes of the inputs, or of others of the same form."""
        inputs = copied(self.inputs if inputs is None else inputs)
        if isinstance(inputs, Mapping):
            return model(**inputs)
        if isinstance(inputs, (tuple, list)) and not hasattr(inputs, "_fields"):
            return model(*inputs)
        return model(inputs)

    def loss(self, output: Any, targets: Any = None) -> Any:
        """Return the loss of an output, as the loss function gives it."""
        if self.loss_fn is None:
            found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            if found is None:
                raise TypeError(
                    f"the model returned {type(output).__name__} without a loss; pass labels in the batch, or a loss_fn"
                )
            return found
        if self.is_mapping:
            return self.loss_fn(output, copied(self._batch))
        return self.loss_fn(output, copied(self.targets if targets is None else targets))

    def named_inputs(self) -> list[tuple[str, Tensor]]:
        """Return every input tensor with its name: "inputs", "inputs[1]", "inputs['pixels']"."""
        return list(_named(self.inputs, "batch" if self.is_mapping else "inputs"))

    @property
    def target(self) -> Tensor | None:
        """The targets where they are one tensor."""
        if self.is_mapping:
            labels = self.inputs.get("labels")
            return labels if isinstance(labels, Tensor) and self.loss_fn is None else None
        return self.targets if isinstance(self.targets, Tensor) else None


def copied(value: Any) -> Any:
    """Return nested inputs with a copy of every tensor: a model that works in place leaves the user's alone."""
    return mapped(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), value)


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return nested inputs with a function applied to every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: mapped(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [mapped(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested inputs."""
    for _, tensor in _named(value, ""):
        yield tensor


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(item, f"{name}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _named(item, f"{name}[{index}]")


def _describe(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}"
    return type(batch).__name__


def _hint(batch: Any) -> str:
    if isinstance(batch, torch.utils.data.DataLoader):
        return "; pass one batch: next(iter(loader))"
    if isinstance(batch, Tensor):
        return "; pass the targets too"
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        return "; for several inputs pass ((first, second), targets)"
    return ""
