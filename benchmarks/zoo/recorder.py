"""Records the signals of a run through hooks that only read, for rule sets that judge it as it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.zoo.activations import ACTIVATIONS, describe
from benchmarks.zoo.signals import Activation, Details, Floats, Signals


STRIDE = 10  # steps between two details
EPOCH = 22  # steps of what counts as an epoch: one of the digits, in batches of 64
RTOL, ATOL = 1e-5, 1e-8  # of numpy.allclose
FEW = 32  # entries of an input below which their spread is chance
SMALL = 1e-5  # magnitude below which a weight counts as nothing

Listener = Callable[[Signals], None]
Accuracies = Callable[[], tuple[float, float]]  # on training and on held-out samples; draws no random numbers


class Recorder:
    """Listens to one optimizer, hands on its signals after every step, and leaves the run as it was, bit for bit.

    Args:
        model: whose activation layers, inputs and outputs are looked at.
        optimizer: whose steps are looked at.
        listener: called with the signals of every step.
        accuracies: of a classifier; None for everything else.
        is_alone: whether the whole model is looked at, all that can be trained; else the optimizer's parameters only.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        listener: Listener,
        accuracies: Accuracies | None = None,
        *,
        is_alone: bool = True,
    ) -> None:
        self._named: list[tuple[str, nn.Parameter]] = []
        self._is_alone = is_alone
        self._model, self._optimizer, self._listener, self._accuracies = model, optimizer, listener, accuracies
        self._step = 0
        self._losses: list[Tensor] = []
        self._before: list[Tensor] = []
        self._last: list[Tensor] | None = None  # weights at the details before
        self._seen: dict[str, Activation] = {}
        self._output: Tensor | None = None
        self._input: Tensor | None = None
        self._handles: list[Any] = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            model.register_forward_hook(self._look_at_ends),
        ]
        for name, module in model.named_modules():
            if isinstance(module, ACTIVATIONS):
                self._handles.append(module.register_forward_hook(self._watch(name)))

    def observe(self, loss: Tensor) -> None:
        """Take a loss of the step that follows."""
        self._losses.append(loss.detach())

    def close(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()

    @property
    def _is_due(self) -> bool:
        return self._step < STRIDE or self._step % STRIDE == 0

    def _watch(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if self._is_due and torch.is_grad_enabled():
                self._seen[name] = describe(name, module, inputs[0].detach(), output.detach())

        return hook

    def _look_at_ends(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        if self._is_due and torch.is_grad_enabled():
            self._output = output.detach() if isinstance(output, Tensor) and output.ndim > 1 else None
            first = inputs[0] if inputs else None
            self._input = first.detach() if isinstance(first, Tensor) and first.is_floating_point() else None

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        trained = ((name, p) for name, p in self._model.named_parameters() if p.requires_grad)
        named = [(name, p) for name, p in trained if self._is_alone or id(p) in own]
        if len(named) != len(self._named):  # some joined meanwhile
            self._named, self._last = named, None
        self._before = [parameter.detach().clone() for _, parameter in self._named]

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        after = [parameter.detach() for _, parameter in self._named]
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.to_dense() if p.grad.is_sparse else p.grad.detach()
            for _, p in self._named
        ]
        sizes = np.array([gradient.numel() for gradient in gradients], dtype=np.float64)
        is_epoch = self._step % EPOCH == EPOCH - 1
        loss = float(torch.stack(self._losses).mean()) if self._losses else None
        signals = Signals(
            step=self._step,
            loss=loss,
            lr=max(float(group["lr"]) for group in optimizer.param_groups),
            names=tuple(name for name, _ in self._named),
            is_matrix=np.array([parameter.ndim > 1 for parameter in after]),
            has_gradient=np.array([parameter.grad is not None for _, parameter in self._named]),
            gradient_norms=_norms(gradients),
            gradient_means=_norms(gradients, 1) / sizes,
            weight_norms=_norms(self._before),
            update_norms=_norms(torch._foreach_sub(after, self._before)),
            zero_share=float(sum((g == 0).sum() for g in gradients) / sizes.sum()) if is_epoch else None,
            accuracy=self._accuracies() if is_epoch and self._accuracies is not None else None,
            details=self._take_details(gradients, self._before) if self._is_due else None,
        )
        self._losses, self._before, self._seen = [], [], {}
        self._output = self._input = None
        self._step += 1
        self._listener(signals)

    def _take_details(self, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> Details:
        last, self._last = self._last, list(weights)
        changes = [np.inf] * len(weights) if last is None else map(_change, weights, last)
        order = [name for name, _ in self._model.named_modules() if name in self._seen]
        given = self._input
        return Details(
            zero_shares=_each(gradients, lambda g: (g == 0).float().mean()),
            gradient_ranges=_each(gradients, _range) if self._step < STRIDE else np.zeros(len(gradients)),
            weight_means=_each(weights, lambda w: w.abs().mean()),
            weight_stds=_each(weights, lambda w: w.std(correction=0)),
            small_shares=_each(weights, lambda w: (w.abs() < SMALL).float().mean()),
            negative_shares=_each(weights, lambda w: (w < 0).float().mean()),
            change=np.array(list(changes), dtype=np.float64),
            activations=tuple(self._seen[name] for name in order),
            output_spread=None if self._output is None else float(_spread(self._output)),
            input_mean=None if given is None else float(given.mean()),
            input_std=None if given is None or given.numel() < FEW else float(given.std(correction=0)),
            input_max=None if given is None else float(given.abs().max()),
        )


def _norms(tensors: Sequence[Tensor], order: int = 2) -> Floats:
    return torch.stack(torch._foreach_norm(tensors, order)).double().numpy()


def _each(tensors: Sequence[Tensor], measure: Callable[[Tensor], Tensor]) -> Floats:
    return torch.stack([measure(tensor) for tensor in tensors]).double().numpy()


def _change(now: Tensor, then: Tensor) -> float:
    return float(((now - then).abs() / (ATOL + RTOL * then.abs())).max())


def _range(gradient: Tensor) -> Tensor:
    low, high = torch.quantile(gradient.flatten(), torch.tensor([0.05, 0.95]))
    return high - low


def _spread(output: Tensor) -> Tensor:
    return output.float().flatten(0, -2).std(0, correction=0).mean()
