"""One thread for models so small that further ones mostly wait for each other, ten times longer on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute by one thread inside the `with` block.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
