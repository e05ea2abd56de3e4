"""Hooks that live on the user's modules and stay behind when these are copied or saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch


_ARE_ASLEEP = ContextVar("are_asleep", default=False)


class InertHook:
    """Calls a function; in a copy or a pickle of the module that it is on it does nothing.

    What a pickle holds in its place takes any arguments, returns None and is Python's own, so that the file loads where
    gradguard is not installed.

    Args:
        function: called with what the hook is called with.
        sleeps: it does nothing within `hooks_asleep`.

    Example:
        >>> import copy
        >>> hook = InertHook(lambda *args: "called")
        >>> hook(), copy.deepcopy(hook)()
        ('called', None)
    """

    def __init__(self, function: Callable[..., Any], sleeps: bool = True) -> None:
        self._function = function
        self._sleeps = sleeps

    def __call__(self, *args: Any) -> Any:
        """Call the function; torch.compile meets nothing here that it would have to trace."""
        if torch.compiler.is_compiling() or (self._sleeps and _ARE_ASLEEP.get()):
            return None
        return self._function(*args)

    @property
    def __name__(self) -> str:
        """None, like other objects; whoever needs one compiles hooks."""
        raise AttributeError(
            "gradguard looks at this model's activations for the next steps, and TorchScript cannot compile its hooks; "
            "script the model before gradguard.attach or after guard.close()"
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, (nullcontext(), "__exit__")


def are_hooks_asleep() -> bool:
    """Return whether a forward pass of now is one of the training's own, run again."""
    return _ARE_ASLEEP.get()


@contextmanager
def hooks_asleep() -> Iterator[None]:
    """Let all of these hooks do nothing for a while: the forward passes are not the training's.

    Example:
        >>> with hooks_asleep():
        ...     InertHook(print)("not printed")
    """
    token = _ARE_ASLEEP.set(True)
    try:
        yield
    finally:
        _ARE_ASLEEP.reset(token)
