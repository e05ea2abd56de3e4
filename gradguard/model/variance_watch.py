"""Whether the batches of a step blew up a running variance, which neither loss nor gradients of that step show."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gradguard.evidence.stats import FloatArray, StepStats


USUAL_GROWTH = 3.0  # of a variance in one step, up to which it is not worth a word
SMALLEST = 1e-5  # a running variance counts as at least this: what normalisation layers add before the division


class VarianceWatch:
    """Compares the running variances of a model with what they were after the last accepted step.

    Args:
        model: its normalisation layers with running statistics are looked at, each as one number: the L2 norm over its
            channels.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(4))
        >>> watch, stats = VarianceWatch(model), StepStats(2)
        >>> _ = model(1e3 * torch.arange(8.0).reshape(2, 4))
        >>> watch.look(stats)
        False
        >>> stats.variance_growth > 1e5, stats.grown_variance
        (True, '0.running_var')
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.read()

    def read(self) -> None:
        """Take the present running variances as good, and look for layers that were added since."""
        found = [(name, module) for name, module in self._model.named_modules() if isinstance(module, _NormBase)]
        found = [(name, module) for name, module in found if module.running_var is not None]
        self._names = [f"{name}.running_var".removeprefix(".") for name, _ in found]
        self._buffers = [module._buffers for _, module in found]
        if found:
            self._latest = self._accepted = self._norms()
            self._versions = self._read_versions()

    def __len__(self) -> int:
        return len(self._buffers)

    def is_on_host(self) -> bool:
        """Return whether all of them are in the memory of the CPU, so that looking waits for no device."""
        return all(variance.is_cpu for variance in self._variances())

    def look(self, stats: StepStats) -> bool:
        """Write the largest growth into the stats, 1 while it is usual; return whether it is.

        What somebody wrote into a variance, such as a checkpoint, is none: layers write without a trace.

        Args:
            stats: its `variance_growth` and `grown_variance` are written.
        """
        stats.variance_growth, stats.grown_variance = 1.0, ""
        self._latest = self._norms()
        with np.errstate(invalid="ignore"):  # what was infinite before and still is has no growth
            growth = self._latest / self._accepted.clip(min=SMALLEST)
        place = int(growth.argmax())
        if growth[place] <= USUAL_GROWTH or not math.isfinite(growth[place]):
            return True
        if self._read_versions() != self._versions:
            self.read()
            return True
        stats.variance_growth, stats.grown_variance = float(growth[place]), self._names[place]
        return False

    def accept(self) -> None:
        """Take what was looked at last as good: call after an applied step."""
        self._accepted = self._latest

    def _variances(self) -> list[Tensor]:
        return [variance for buffers in self._buffers if (variance := buffers["running_var"]) is not None]

    def _norms(self) -> FloatArray:
        return torch.stack([norm.float() for norm in torch._foreach_norm(self._variances())]).numpy(force=True)

    def _read_versions(self) -> list[tuple[int, int]]:
        return [(id(variance), variance._version) for variance in self._variances()]
