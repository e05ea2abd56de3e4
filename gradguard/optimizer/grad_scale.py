"""The factor that torch's fused kernels apply to gradients while they read them: scaling without a pass over memory.

A fused optimizer divides by `optimizer.grad_scale` inside its step and writes the divided gradient back to `p.grad`, so
afterwards the gradients look as if they had been multiplied before. GradScaler uses the same attribute for its scale;
both factors then go into one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradguard.gradients.sharded import is_sharded


NARROW = (torch.float32, torch.bfloat16, torch.float16)  # the scale is a float32: too coarse for float64 gradients
MISSING: Any = object()


def is_foldable(optimizer: Optimizer, params: Sequence[Tensor]) -> bool:
    """Return whether one factor on the gradients of `params` can be left to the optimizer's own kernels.

    They must be all the parameters that the optimizer has, dense, on one device, all sharded or none, and in groups
    that all take the fused path: the others refuse a `grad_scale`.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> is_foldable(torch.optim.AdamW([weight], fused=True), [weight])
        True
        >>> is_foldable(torch.optim.AdamW([weight]), [weight])
        False
    """
    groups = optimizer.param_groups
    if not getattr(optimizer, "_step_supports_amp_scaling", False) or not all(group.get("fused") for group in groups):
        return False
    if not params or sum(len(group["params"]) for group in groups) != len(params):
        return False
    kinds = {(p.device, p.layout, type(p.data)) for p in params}
    if len(kinds) != 1 or {p.dtype for p in params} - {*NARROW}:
        return False
    _, layout, kind = next(iter(kinds))
    return layout == torch.strided and (kind is Tensor or is_sharded(params[0]))


class GradScale:
    """Attributes of a fused optimizer that hold for one step: `grad_scale` and `found_inf`.

    Args:
        optimizer: one for which `is_foldable` is true.

    Attributes:
        factor: by which the gradients are to be multiplied at this step, gathered until `put_on`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.factor = 1.0
        self._optimizer = optimizer
        self._replaced: dict[str, tuple[Any, Tensor]] = {}

    def is_usable(self) -> bool:
        """Return whether the groups still take the fused path; a loaded state may have changed that."""
        return all([group.get("fused") for group in self._optimizer.param_groups])

    def put_on(self) -> None:
        """Leave `factor` to the kernels of the step that comes."""
        if self.factor == 1.0:
            return
        known = getattr(self._optimizer, "grad_scale", None)
        if known is None:
            device = self._optimizer.param_groups[0]["params"][0].device
            self.set("grad_scale", torch.full((), 1.0 / self.factor, dtype=torch.float32, device=device))
        else:
            self.set("grad_scale", known / self.factor)
        self.factor = 1.0

    def set(self, name: str, value: Tensor) -> None:
        """Set an attribute of the optimizer until `take_off`."""
        self._replaced.setdefault(name, (self._optimizer.__dict__.get(name, MISSING), value))
        self._replaced[name] = (self._replaced[name][0], value)
        setattr(self._optimizer, name, value)

    def take_off(self) -> None:
        """Put back what the attributes were, unless someone else has set them since."""
        self.factor = 1.0
        if not self._replaced:
            return
        for name, (before, value) in self._replaced.items():
            if self._optimizer.__dict__.get(name) is value:
                if before is MISSING:
                    delattr(self._optimizer, name)
                else:
                    setattr(self._optimizer, name, before)
        self._replaced.clear()
