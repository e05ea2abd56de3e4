"""Gradient accumulation: a micro-batch whose gradient is not finite is taken back before the next one is added.

backward -> before a parameter's gradient is added to: a copy of what is there -> the backward ends: is the sum finite?
yes: the micro-batch stays;  no: the copies go back, and the step's mean is over the others
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.optim import LBFGS, Optimizer

from gradguard.evidence.stats import StepStats
from gradguard.functional import nonfinite_tensors
from gradguard.snapshots.buffer_shadow import BufferShadow


def remaining_factor(num_microbatches: int, num_dropped: int) -> float:
    """Return the factor that makes a sum of n - k micro-batches, each divided by n, their mean.

    Args:
        num_microbatches: n.
        num_dropped: k < n.

    Example:
        >>> remaining_factor(4, 1)
        1.3333333333333333
    """
    return num_microbatches / (num_microbatches - num_dropped)


def reason_not_to_drop(model: nn.Module, optimizer: Optimizer, has_scaler: bool) -> str:
    """Return why micro-batches of a training cannot be taken back, "" when they can."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if dist.is_available() and dist.is_initialized():
        return "in distributed training every rank would drop other ones"
    if has_scaler:
        return "GradScaler finds its scale by overflows, which would be dropped"
    if isinstance(optimizer, LBFGS):
        return "the optimizer evaluates its closure several times a step"
    if any(hasattr(param, "main_grad") or param._post_accumulate_grad_hooks for param in params):
        return "gradients are accumulated or used elsewhere during the backward pass"
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return "some gradients are sparse"
    return ""


class Microbatches:
    """Follows the backward passes between two steps.

    It copies what was accumulated before each further backward pass, and waits for the device at the end of each.

    Args:
        model: its buffers forget a dropped micro-batch, too.
        optimizer: of its parameters the gradients are followed.
        window: returns a number that changes whenever gradients start afresh.
        is_wanted: asked at a micro-batch that is not finite; returns whether it is to be dropped.
        on_fault: called with (what failed, error) when something in here fails; it is off from then on.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        window: Callable[[], int],
        is_wanted: Callable[[], bool],
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        self._optimizer = optimizer
        self._window_now = window
        self._is_wanted = is_wanted
        self._on_fault = on_fault
        self._buffers = BufferShadow(model)
        self._window = -1
        self._num = 0
        self._dropped: list[int] = []
        self._empty: set[int] = set()  # rows that nothing but dropped micro-batches was added to
        self._filled: set[int] = set()  # rows that something was added to since gradients started afresh
        self._is_fresh = True
        self._before: dict[int, Tensor | None] = {}
        self._task = -1
        self._copies: dict[int, Tensor] = {}
        self.read()

    def read(self) -> None:
        """Follow the parameters that the optimizer has now."""
        groups = self._optimizer.param_groups
        self._params: list[Tensor] = [param for group in groups for param in group["params"] if param.requires_grad]
        self._nodes = [get_gradient_edge(param).node for param in self._params]
        self._handles = [node.register_prehook(self._hook(row)) for row, node in enumerate(self._nodes)]
        self._copies.clear()
        self.end_step()

    def _hook(self, row: int) -> Callable[..., None]:
        def before(grads: Any) -> None:
            try:
                self._keep(row)
            except Exception as error:
                self._give_up(error)

        return before

    def _keep(self, row: int) -> None:
        """Note what one parameter's gradient is before this backward pass adds to it."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            self._before.clear()
            Variable._execution_engine.queue_callback(self._end)
        if row in self._before:
            return
        grad = self._params[row].grad
        if grad is None:
            self._before[row] = None
            self._is_fresh |= row in self._filled
            return
        known = self._copies.get(row)
        if known is None or known.shape != grad.shape or known.dtype != grad.dtype:
            known = self._copies[row] = torch.empty_like(grad.detach())
        self._before[row] = known.copy_(grad.detach())

    def _end(self) -> None:
        """A backward pass is over: take it in, or back."""
        try:
            before, self._before = self._before, {}
            if before:
                self._take_in(before)
        except Exception as error:
            self._give_up(error)

    @torch.no_grad()
    def _take_in(self, before: dict[int, Tensor | None]) -> None:
        if self._is_fresh or self._window != self._window_now():
            self.forget()
            self._window = self._window_now()
        self._num += 1
        self._filled |= before.keys()
        grads = {row: grad for row in before if (grad := self._params[row].grad) is not None}
        if not nonfinite_tensors([grad.detach() for grad in grads.values()]):
            self._empty -= before.keys()
            self._buffers.accept()
            return
        if nonfinite_tensors([copy for copy in before.values() if copy is not None]) or not self._is_wanted():
            return
        self._dropped.append(self._num - 1)
        self._buffers.restore()
        for row, grad in grads.items():
            copy = before[row]  # through `.data`: a version that counts up would look like gradients that start afresh
            if copy is None:
                grad.data.zero_()
                self._empty.add(row)
            else:
                grad.data.copy_(copy)

    def tell(self, stats: StepStats, losses: Sequence[Any]) -> Sequence[Any]:
        """Say in the stats what was dropped since the last step; return the losses of the others.

        Args:
            stats: of the step that comes; `num_microbatches` and `dropped_microbatches` are set.
            losses: observed since the last step; those of dropped micro-batches are told by their place if there is one
                for each micro-batch, else by not being finite.
        """
        stats.num_microbatches, stats.dropped_microbatches = self._num, len(self._dropped)
        if not self._dropped:
            return losses
        for row in self._empty:
            self._params[row].grad = None
        if len(losses) == self._num:
            return [loss for index, loss in enumerate(losses) if index not in self._dropped]
        return [loss for loss in losses if bool(torch.as_tensor(loss).isfinite().all())]

    def forget(self) -> None:
        """Start counting afresh."""
        self._num = 0
        self._dropped = []
        self._empty.clear()
        self._filled.clear()
        self._is_fresh = False

    def end_step(self) -> None:
        """The step is over; whatever it left in the buffers is what the next micro-batch starts from."""
        self.forget()
        self._buffers.accept()

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._nodes = []
        self._copies.clear()
        self.forget()

    def _give_up(self, error: Exception) -> None:
        self.close()
        self._on_fault("following micro-batches", error)
