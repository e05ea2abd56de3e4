"""What people use today, called as its own documentation says."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def zclip(model: nn.Module) -> Callable[[], Any]:
    """Return what is called between backward and step: ZClip 1.x with its defaults, but for the fixed limit of 1."""
    clipper = importlib.import_module("zclip").ZClip(max_grad_norm=None)
    return lambda: clipper.step(model)


def smartclip(model: nn.Module) -> Callable[[], Any]:
    """Return what is called between backward and step: AutoClip with its defaults."""
    package = importlib.import_module("smartclip")
    clipper = package.AutoClip()
    return lambda: package.apply(model, clipper)


class Hooks:
    """The hooks of many a tutorial: mean, deviation, extremes and share of zeros of every gradient, as numbers."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = params
        self.statistics: dict[int, tuple[float, ...]] = {}
        self._handles = [param.register_hook(self._hook(index)) for index, param in enumerate(params)]

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        return lambda grad: self._read(index, grad)

    def _read(self, index: int, grad: Tensor) -> None:
        self.statistics[index] = (
            grad.mean().item(),
            grad.std().item(),
            grad.max().item(),
            grad.min().item(),
            (grad == 0).float().mean().item(),
        )

    @torch.no_grad()
    def read_all(self) -> None:
        """Do what the hooks of one backward do."""
        for index, param in enumerate(self._params):
            if param.grad is not None:
                self._read(index, param.grad)

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


class Watch:
    """`wandb.watch` on a run without a network, with histograms of every gradient at every step."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        os.environ["WANDB_SILENT"] = "true"
        self._model = model
        wandb = importlib.import_module("wandb")
        options = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        self._run = wandb.init(project="overhead", mode="offline", dir=str(folder), settings=options)
        self._run.watch(model, log="gradients", log_freq=1)

    def log(self, loss: float) -> None:
        """Hand in what the hooks have gathered, with the loss."""
        self._run.log({"loss": loss})

    def close(self) -> None:
        """Take the hooks off and finish the run."""
        self._run.unwatch(self._model)
        self._run.finish()
