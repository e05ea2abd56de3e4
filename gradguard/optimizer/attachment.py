"""Torch's own step hooks: how the pipeline gets to run just before and just after every optimizer step.

optimizer.step()          pre-hook -> before_step;  torch's step;  post-hook -> after_step
optimizer.step(closure)   pre-hook wraps the closure; its first evaluation -> before_step, since only then there are
                          gradients; torch's step; post-hook -> after_step
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class StepListener(Protocol):
    """What is told about every step."""

    def before_closure(self) -> None:
        """A step with a closure begins; there are no gradients yet."""

    def before_step(self, loss: Any) -> None:
        """Gradients are there and torch's step is about to use them; `loss` is the closure's, else None."""

    def abandon_step(self) -> None:
        """The user's closure raised: torch's step is not taken, and no post-hook will run."""

    def after_step(self) -> None:
        """Torch's step is done."""


class Attachment:
    """A pair of step hooks on one optimizer.

    Args:
        optimizer: the one whose steps are listened to.
        listener: who is told.
    """

    def __init__(self, optimizer: Optimizer, listener: StepListener) -> None:
        self.listener = listener
        self._num_evaluations = 0
        self._handles: list[RemovableHandle] = []
        try:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.listener.before_step(None)
            return None
        self.listener.before_closure()
        self._num_evaluations = 0
        wrapped = self._wrap(closure)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def _wrap(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            try:
                loss = closure()
            except BaseException:
                self.listener.abandon_step()
                raise
            self._num_evaluations += 1
            if self._num_evaluations == 1:
                self.listener.before_step(loss.detach() if isinstance(loss, torch.Tensor) else loss)
            return loss

        return evaluate

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.listener.after_step()


def listeners_of(optimizer: Optimizer) -> list[StepListener]:
    """Return who listens to an optimizer's steps through an `Attachment`."""
    found = []
    for hook in optimizer._optimizer_step_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, Attachment):
            found.append(owner.listener)
    return found
