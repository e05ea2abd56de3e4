"""The first place in a forward pass at which something is not finite, found by hooks that are there for one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradguard.evidence.origin import Origin
from gradguard.model.model_boundary import input_tensors, is_readable, named_values
from gradguard.model.nonfinite_entries import Badness, badness


@dataclass
class _Frame:
    """A module that is being called, and the last of those that it has called."""

    name: str
    module: nn.Module
    last: str = ""


class FirstNonfinite:
    """Follows a forward pass from module to module.

    Minus infinity counts once it has come to more than that: what softmax makes of a mask is finite again.

    Args:
        root: the model.
        clean: turns a name in the model into the one that is told.

    Attributes:
        found: where something was first not finite; None while everything is.
        order: names of the modules in the order of their last calls.
        exploded: size of the largest entry of the model's output if its square is beyond its type; else 0.
    """

    def __init__(self, root: nn.Module, clean: Callable[[str], str] = str) -> None:
        self._root = root
        self._clean = clean
        self._frames: list[_Frame] = []
        self._doubt: Origin | None = None  # since where minus infinity has gone from module to module
        self.found: Origin | None = None
        self.order: dict[str, None] = {}
        self.exploded = 0.0

    @contextmanager
    def watching(self) -> Iterator[FirstNonfinite]:
        """Have hooks on every module for as long as it lasts."""
        with ExitStack() as handles:
            for name, module in self._root.named_modules():
                before, after = self._hooks(self._clean(name))
                handles.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                handles.callback(module.register_forward_hook(after).remove)
            yield self
            self.found = self.found or self._doubt

    def _take(self, tensors: Iterable[Tensor], origin: Callable[[], Origin]) -> None:
        """Take in what went into a module, or came out of it."""
        if self.found is not None:
            return
        how = max(map(badness, tensors), default=Badness.NONE)
        if how is Badness.NONE:
            self._doubt = None
        elif self._doubt is None:
            self._doubt = origin()
        if how is Badness.SURE:
            self.found = self._doubt

    def _hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._frames:
                caller = self._frames[-1]
                given = input_tensors(args, kwargs).values()
                self._take(given, lambda: self._origin(caller, after=caller.last, before=name))
            self._frames.append(_Frame(name, module))

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            frame = self._frames.pop()
            self.order.pop(name, None)
            self.order[name] = None
            if self._frames:
                self._frames[-1].last = name
            values = [value for _, value in named_values(output) if is_readable(value)]
            if not self._frames:
                self.exploded = _beyond(values)
            self._take(
                values,
                lambda: self._origin(
                    frame, after=frame.last, largest=0.0 if frame.last else _overflowing(module, args)
                ),
            )

        return before, after

    def _origin(self, frame: _Frame, after: str = "", before: str = "", largest: float = 0.0) -> Origin:
        owner, name = (frame.module, frame.name) if not before else (None, "")
        if after:
            owner, name = next((m for n, m in self._root.named_modules() if self._clean(n) == after), None), after
        own = [] if owner is None else [own for own, _ in owner.named_parameters(recurse=owner is not self._root)]
        return Origin(
            "forward",
            place=frame.name,
            kind=type(frame.module).__name__,
            after=after,
            before=before,
            parameters=tuple(self._clean(f"{name}.{one}" if name else one) for one in own),
            largest=largest,
        )


def _overflowing(module: nn.Module, args: tuple[Any, ...]) -> float:
    """Return the size of the largest entry that a module multiplies, if its square is beyond its type; else 0."""
    return _beyond([*input_tensors(args, {}).values(), *module.parameters(recurse=False)])


def _beyond(tensors: Iterable[Tensor]) -> float:
    sizes = [(float(tensor.detach().abs().max()), tensor.dtype) for tensor in tensors if is_readable(tensor)]
    return max(
        (size for size, dtype in sizes if math.sqrt(torch.finfo(dtype).max) < size < math.inf),
        default=0.0,
    )
