"""What the user handed in for the step that comes next."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

from torch import Tensor

from gradguard.errors import UsageError


SampleIds = tuple[int | str, ...]


class Observed:
    """Losses and sample ids since the last step, each with the window of gradients that it belongs to."""

    def __init__(self) -> None:
        self._items: list[tuple[int, Any, SampleIds]] = []

    def add(self, window: int, loss: Any, sample_ids: Iterable[int | str] | None, is_early: bool) -> None:
        """Take one loss in; `is_early` says that its backward is still to come.

        Of several early ones for a window only the newest counts: the others never had a backward.
        """
        if is_early:
            self._items = [item for item in self._items if item[0] != window]
        self._items.append((window, loss, () if sample_ids is None else tuple(sample_ids)))

    def of_window(self, window: int) -> tuple[list[Any], SampleIds]:
        """Return losses and sample ids that belong to a window of gradients.

        A batch whose step was never taken is left out. The newest loss is taken in any case: it may have been observed
        before its backward.
        """
        items = self._items
        if len(items) == 1:
            return [items[0][1]], items[0][2]
        if items:
            items = [item for item in items if item[0] == window] or items[-1:]
        return [loss for _, loss, _ in items], sum([ids for _, _, ids in items], ())

    def losses(self) -> list[Any]:
        """Return all losses."""
        return [loss for _, loss, _ in self._items]

    def clear(self) -> None:
        """Forget everything: the step that it was about has come, or never will."""
        self._items = []


def checked_loss(loss: Any, is_read: bool = False) -> Any:
    """Return a loss detached from its graph.

    Args:
        loss: one element, a tensor or a number.
        is_read: return a float where reading the loss waits for no device.

    Raises:
        UsageError: not a number, or a tensor with several elements.

    Example:
        >>> checked_loss(0.5)
        0.5
    """
    if isinstance(loss, Tensor):
        if is_read and loss.is_cpu and loss.numel() == 1 and isinstance(value := loss.item(), float):
            return value
        if loss.is_complex():
            raise UsageError(
                "observe() expects a real loss, got a complex tensor; pass its absolute value or real part"
            )
        if loss.numel() != 1:
            raise UsageError(
                f"observe() expects the loss as one number, got a tensor of shape {tuple(loss.shape)}; "
                "reduce it first, such as loss.mean()"
            )
        return loss.detach()
    if not isinstance(loss, Real):
        raise UsageError(f"observe() expects a tensor or a number, got {type(loss).__name__}")
    return loss
