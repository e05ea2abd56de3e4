"""Hooks that live on the user's modules and stay behind when these are copied or saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class InertHook:
    """Calls a function; in a copy or a pickle of the module that it is on it does nothing.

    Example:
        >>> import copy
        >>> hook = InertHook(lambda *args: "called")
        >>> hook(), copy.deepcopy(hook)()
        ('called', None)
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        """Call the function, if there is one; torch.compile meets nothing here that it would have to trace."""
        if torch.compiler.is_compiling():
            return None
        return None if self._function is None else self._function(*args)

    def __reduce__(self) -> tuple[type[InertHook], tuple[()]]:
        return InertHook, ()
