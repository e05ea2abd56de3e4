"""What the contenders of one cell have in common, and how each of them is made ready."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from benchmarks.overhead.contenders import Contender, Setting
from benchmarks.overhead.entrant import Entrant
from benchmarks.overhead.optimizers import OPTIMIZERS
from benchmarks.overhead.workloads import Batch, Workload


DUE = 0.5  # the limit of a clip that is due at every step, as a share of the smallest gradient norm
PRESET_STD = 1e-3
PRESET_LOSS = 3.0  # handed to `observe` where there is no forward pass


class Arena:
    """What the entrants of a cell have in common: the model that they copy, the batches, the limit that is due."""

    def __init__(self, workload: Workload, optimizer: str, folder: Path) -> None:
        self.workload, self.optimizer, self._folder = workload, optimizer, folder
        self.model = workload.make()
        self.batches = workload.batches()
        self._preset: list[Tensor] = []
        if not self.batches:
            for param in self.model.parameters():
                param.grad = torch.empty_like(param).normal_(std=PRESET_STD)
                self._preset.append(param.grad)
        self._source = [gradient.clone() for gradient in self._preset]
        self.limit = DUE * self._smallest_norm()
        self._shared: Setting | None = None

    def _smallest_norm(self) -> float:
        model, norms = copy.deepcopy(self.model), []
        for batch in self.batches:
            model.zero_grad()
            model(*batch).backward()
            norms.append(_norm(model))
        return min(norms, default=0.0) or _norm(self.model)

    def admit(self, contender: Contender, is_alone: bool = False) -> Entrant:
        """Make a contender ready, on a copy of the model unless nobody else is to come.

        Preset gradients are one set for all. Those who keep nothing on the model or the optimizer then share these too:
        at 124 M parameters a copy takes 1.5 GB.
        """
        place, settle = self._folder / contender.name, self.workload.settle
        place.mkdir()
        if self._preset and not contender.is_guard:
            self._shared = self._shared or self._setting(self.model, place)
            return Entrant(contender, self._shared, PRESET_LOSS, settle)
        model = self.model if is_alone else copy.deepcopy(self.model)
        for param, gradient in zip(model.parameters(), self._preset, strict=bool(self._preset)):
            param.grad = gradient
        loss = PRESET_LOSS
        if self.batches:
            first = model(*self.batches[0])
            first.backward()
            loss = first.item()
        return Entrant(contender, self._setting(model, place), loss, settle, self.batches)

    def _setting(self, model: nn.Module, place: Path) -> Setting:
        params = list(model.parameters())
        optimizer = OPTIMIZERS[self.optimizer](params)
        optimizer.step()  # allocates the optimizer's state, which is nobody's overhead
        return Setting(model, optimizer, params, self.limit, place)

    def batch(self, index: int) -> Batch | None:
        """Return the batch of a round."""
        return self.batches[index % len(self.batches)] if self.batches else None

    def refill(self) -> None:
        """Put preset gradients back after a step that changed them; not timed."""
        if self._preset:
            torch._foreach_copy_(self._preset, self._source)


def _norm(model: nn.Module) -> float:
    return float(get_total_norm([param.grad for param in model.parameters() if param.grad is not None]))
