"""What the training's forward passes since the last step were given, and the random state that each began with."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradguard.model.inert_hook import InertHook
from gradguard.snapshots.random_state import torch_random_state


MAX_PASSES = 64  # of one step; of more the last ones are kept


@dataclass
class ForwardPass:
    """One call of the model.

    Args:
        args: its arguments, not copied.
        kwargs: those that have a name.
        random: state of torch's random generators before it; {} if not kept.
        was_autocast: it ran under `torch.autocast`.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: dict[str, Any]
    was_autocast: bool = False


class ForwardInputs:
    """Holds on to what a model is called with, from one step to the next.

    Args:
        model: its own calls are seen, in training mode and with gradients; not those of modules inside of it.
        on_fault: called with (what failed, error) when the hook fails; it takes itself off.
        keeps_random: the state of the random generators before each call is kept as well.

    Attributes:
        passes: since `forget`, oldest first.
        last: the last one, `forget` or not; None before the first.
    """

    def __init__(self, model: nn.Module, on_fault: Callable[[str, Exception], None], keeps_random: bool = True) -> None:
        self.passes: deque[ForwardPass] = deque(maxlen=MAX_PASSES)
        self.last: ForwardPass | None = None
        self._on_fault = on_fault
        self._keeps_random = keeps_random
        self._handle = model.register_forward_pre_hook(InertHook(self._before), with_kwargs=True)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        try:
            self.last = ForwardPass(args, kwargs, torch_random_state() if self._keeps_random else {})
            self.passes.append(self.last)
        except Exception as error:
            self.close()
            self._on_fault("keeping the model's inputs", error)

    def forget(self) -> None:
        """Let go of the inputs: their step is over."""
        self.passes.clear()

    def close(self) -> None:
        """Take the hook off and let go of the inputs."""
        self._handle.remove()
        self.forget()
        self.last = None
