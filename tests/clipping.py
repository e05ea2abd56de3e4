"""Made-up gradients put through a guarded optimizer, and through whatever else clips them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradguard


SHAPES = ((3, 4), (5,), (2, 3, 2, 2), (1,))


def make_model(shapes: Sequence[tuple[int, ...]] = SHAPES) -> nn.ParameterList:
    torch.manual_seed(0)
    return nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])


def gradients(
    steps: int, noise: float = 0.2, spike_every: int = 17, shapes: Sequence[tuple[int, ...]] = SHAPES, seed: int = 0
) -> Iterator[list[Tensor]]:
    """Yield gradients whose norm varies, with a spike now and then."""
    random = np.random.default_rng(seed)
    for step in range(steps):
        size = float(np.exp(noise * random.standard_normal()))
        size *= 8.0 if step % spike_every == spike_every - 1 else 1.0
        yield [torch.tensor(random.standard_normal(shape) * size, dtype=torch.float32) for shape in shapes]


def put(model: nn.Module, grads: Sequence[Tensor]) -> None:
    for param, grad in zip(model.parameters(), grads, strict=True):
        param.grad = grad.clone()


def grads_of(model: nn.Module) -> list[Tensor]:
    return [param.grad.clone() for param in model.parameters()]


class Clipper:
    """A guard that does one thing at every step, on weights that stay where they are.

    Args:
        remedy: as in a policy file.
        model: gets the gradients.
        parameters: patterns of the rule.
        first_group: how many parameters are in the first of two param groups; None for one group.
    """

    def __init__(
        self,
        remedy: dict[str, Any],
        model: nn.Module,
        parameters: Sequence[str] | None = None,
        first_group: int | None = None,
    ) -> None:
        self.model = model
        params = list(model.parameters())
        groups = [params] if first_group is None else [params[:first_group], params[first_group:]]
        self.optimizer = torch.optim.SGD([{"params": group} for group in groups], lr=0.0)
        rule = {"when": "always", "do": remedy, "parameters": parameters}
        policy = gradguard.Policy.model_validate({"rules": [rule], "sinks": []})
        self.guard = gradguard.attach(model, self.optimizer, policy)

    def clip(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Return what a step's gradients are when the optimizer uses them."""
        put(self.model, grads)
        self.optimizer.step()
        assert not [record for record in self.guard.records if getattr(record, "event", "") == "internal_error"]
        return grads_of(self.model)

    @property
    def tracker(self) -> Any:
        """The memory of the policy's only limit."""
        (tracker,) = self.guard._pipeline.judgement.trackers.values()
        return tracker


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], rtol: float = 1e-5) -> None:
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=rtol, atol=1e-12)
