"""What people guard their steps with today, each with the defaults that it was published with.

Every one of them takes the place of `optimizer.step()` and keeps count of the steps at which it changed something
(`interventions`) and of those that reached the weights (`taken`).
"""

from __future__ import annotations

import importlib
from collections import deque

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer


class Unguarded:
    """Takes every step as it comes.

    Args:
        model: what is trained; its last layer is called `head`.
        optimizer: of its parameters.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.params = list(model.parameters())
        self.interventions = 0
        self.taken: set[int] = set()

    def step(self, step: int, loss: Tensor) -> None:
        """Guard and take one step, of which backward has just been called."""
        if self.admits(loss):
            self.optimizer.step()
            self.taken.add(step)

    def admits(self, loss: Tensor) -> bool:
        """Change the gradients in place, and return whether the step is to be taken."""
        return True

    def close(self) -> None:
        """Let go of the optimizer."""

    def grads(self) -> list[Tensor]:
        """Return the gradients that are there."""
        return [param.grad for param in self.params if param.grad is not None]


class FixedClip(Unguarded):
    """Clips the global norm to 1."""

    max_norm = 1.0

    def admits(self, loss: Tensor) -> bool:
        """See `Unguarded.admits`."""
        self.interventions += float(clip_grad_norm_(self.params, self.max_norm)) > self.max_norm
        return True


class AutoClip(Unguarded):
    """Clips to a percentile of all norms so far, that of the step included.

    Seetharaman, Wichern, Pardo, Le Roux 2020, "AutoClip: Adaptive Gradient Clipping for Source Separation Networks".
    """

    percentile = 10.0

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self._history: list[float] = []

    def admits(self, loss: Tensor) -> bool:
        """See `Unguarded.admits`."""
        self._history.append(float(get_total_norm(self.grads())))
        limit = float(np.percentile(self._history, self.percentile))
        clip_grad_norm_(self.params, limit)
        self.interventions += self._history[-1] > limit
        return True


class ZClip(Unguarded):
    """Clips what stands out from a moving mean by its z-score: the package `zclip`, as it comes."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self._clipper = importlib.import_module("zclip").ZClip()

    def admits(self, loss: Tensor) -> bool:
        """See `Unguarded.admits`."""
        before = float(get_total_norm(self.grads()))
        self._clipper.step(self.model)
        self.interventions += float(get_total_norm(self.grads())) < before * (1 - 1e-6)
        return True


class AdaGC(Unguarded):
    """Clips every tensor to a little above the moving average of its own clipped norms.

    Wang et al. 2025, "AdaGC: Improving Training Stability for Large Language Model Pretraining".
    """

    warmup_steps, absolute, relative, decay = 100, 1.0, 1.05, 0.98

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self._levels: list[float] = []
        self._num_steps = 0

    def admits(self, loss: Tensor) -> bool:
        """See `Unguarded.admits`."""
        grads = self.grads()
        if self._num_steps < self.warmup_steps:
            self.interventions += float(clip_grad_norm_(self.params, self.absolute)) > self.absolute
            norms = [float(grad.norm()) for grad in grads]
            self._levels = [min(pair) for pair in zip(self._levels or norms, norms, strict=True)]
        else:
            self.interventions += self._clip_each(grads)
        self._num_steps += 1
        return True

    def _clip_each(self, grads: list[Tensor]) -> bool:
        is_clipped = False
        for index, grad in enumerate(grads):
            norm, limit = float(grad.norm()), self.relative * self._levels[index]
            if norm > limit:
                grad.mul_(limit / norm)
                norm, is_clipped = limit, True
            self._levels[index] = self.decay * self._levels[index] + (1 - self.decay) * norm
        return is_clipped


class AGC(Unguarded):
    """Clips every unit against the norm of its weights; the last layer is left out, as published.

    Brock, De, Smith, Simonyan 2021, "High-Performance Large-Scale Image Recognition Without Normalization".
    """

    clip_factor, eps = 0.01, 1e-3

    @torch.no_grad()
    def admits(self, loss: Tensor) -> bool:
        """See `Unguarded.admits`."""
        is_clipped = False
        for name, param in self.model.named_parameters():
            if param.grad is None or name.startswith("head."):
                continue
            limit = self.clip_factor * _unit_norms(param).clamp_min(self.eps)
            norms = _unit_norms(param.grad)
            is_clipped |= bool((norms > limit).any())
            param.grad.copy_(torch.where(norms > limit, param.grad * (limit / norms.clamp_min(1e-6)), param.grad))
        self.interventions += is_clipped
        return True


class SigmaSkip(Unguarded):
    """Skips a step whose loss or norm is more than six deviations above the mean of the last 128: OLMo's rule.

    A skipped step is multiplied by zero, as there: entries that are NaN or infinite still reach weights and moments.
    What was skipped enters the window all the same.

    OLMo team 2024, "2 OLMo 2 Furious"; `SkipStepAdamW` of OLMo-core.
    """

    num_stds, window = 6.0, 128

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self._losses: deque[float] = deque(maxlen=self.window + 1)
        self._norms: deque[float] = deque(maxlen=self.window + 1)

    def admits(self, loss: Tensor) -> bool:
        """See `Unguarded.admits`."""
        self._losses.append(float(loss.detach()))
        self._norms.append(float(get_total_norm(self.grads())))
        if len(self._losses) < self.window // 2 or all(map(self._is_usual, (self._losses, self._norms))):
            return True
        self._multiply_by_zero()
        self.interventions += 1
        return False

    def _is_usual(self, values: deque[float]) -> bool:
        *past, value = values
        std, mean = torch.std_mean(torch.tensor(past))
        return bool(value - mean <= self.num_stds * std)

    @torch.no_grad()
    def _multiply_by_zero(self) -> None:
        for param in self.params:
            if param.grad is not None:
                moments = [
                    value
                    for value in self.optimizer.state[param].values()
                    if isinstance(value, Tensor) and value.shape == param.shape
                ]
                for tensor in (param, *moments):
                    tensor.add_(0.0 * param.grad)


def _unit_norms(tensor: Tensor) -> Tensor:
    """Return the norm of every output unit, in a shape that multiplies the tensor; vectors are one unit."""
    if tensor.ndim <= 1:
        return torch.linalg.vector_norm(tensor)
    return torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)), keepdim=True)
