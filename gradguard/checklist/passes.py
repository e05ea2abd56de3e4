"""Forward and backward passes over the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradguard.checklist.batch import Batch
from gradguard.checklist.facts import Failure, Stage
from gradguard.checklist.probes import Probes
from gradguard.checklist.restore import Remembered


MAX_MESSAGE = 300  # characters of an exception that are kept


class Failed(Exception):
    """The training raised; `failure` says where."""

    def __init__(self, stage: Stage, error: Exception, module: str = "") -> None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = " ".join(lines[:3])[:MAX_MESSAGE]
        self.failure = Failure(stage, type(error).__name__, message, module)
        super().__init__(message)


@dataclass
class Passes:
    """Runs the user's model on the user's batch.

    Args:
        model: without the wrappers of DDP or torch.compile.
        batch: what it is run on.
        parameters: whose gradients are wanted.
        remembered: what to rewind.
        is_repeated: every pass draws the same random numbers and sees the same buffers.
    """

    model: nn.Module
    batch: Batch
    parameters: Sequence[nn.Parameter]
    remembered: Remembered
    is_repeated: bool = True

    def output(self, probes: Probes | None = None, inputs: Any = None) -> Any:
        """Return the model's output."""
        if self.is_repeated:
            self.remembered.rewind()
        try:
            if probes is None:
                return self.batch.output(self.model, inputs)
            with probes:
                return self.batch.output(self.model, inputs)
        except Exception as error:  # it is the user's code: reported, not raised
            raise Failed("forward", error, "" if probes is None else probes.innermost) from error

    def loss(self, output: Any) -> Tensor:
        """Return the loss of an output, a tensor of any shape."""
        try:
            found = self.batch.loss(output)
            if not isinstance(found, Tensor):
                raise TypeError(f"the loss is a {type(found).__name__}, not a tensor")
        except Exception as error:
            raise Failed("loss", error) from error
        return found

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """Return the gradient of every parameter; `.grad` and hooks on it are left alone."""
        wanted = [p for p in self.parameters if p.requires_grad]
        if not wanted:
            return [None] * len(self.parameters)
        try:
            by_autograd: Iterable[Tensor | None] = torch.autograd.grad(loss, wanted, allow_unused=True)
            found = iter(by_autograd)
        except Exception as error:
            if "checkpoint" not in str(error).lower():
                raise Failed("backward", error) from error
            found = iter(self._by_backward(wanted))
        return [next(found) if p.requires_grad else None for p in self.parameters]

    def _by_backward(self, wanted: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Reentrant checkpointing knows no other way; the gradients are taken off again."""
        kept = [p.grad for p in wanted]
        for parameter in wanted:
            parameter.grad = None
        try:
            self.loss(self.output()).backward()  # type: ignore[no-untyped-call]
            return [p.grad for p in wanted]
        except Failed:
            raise
        except Exception as error:
            raise Failed("backward", error) from error
        finally:
            for parameter, grad in zip(wanted, kept, strict=True):
                parameter.grad = grad

    def value(self) -> float:
        """Return the loss of one more forward pass."""
        with torch.no_grad():
            return float(self.loss(self.output()).detach())

    def value_and_gradients(self) -> tuple[float, list[Tensor | None]]:
        """Return the loss and the gradients of one more pass."""
        loss = self.loss(self.output())
        return float(loss.detach()), self.gradients(loss)
